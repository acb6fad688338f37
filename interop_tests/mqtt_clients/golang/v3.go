package main

import (
	"errors"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

// paho.mqtt.golang: MQTT 3.1 and 3.1.1.
type client3 struct{ mqtt.Client }

func ended(token mqtt.Token) error {
	if !token.WaitTimeout(wait) {
		return errors.New("no answer in time")
	}
	return token.Error()
}

func connect3(name, url string, level uint, id string, clean bool, will string) (client, bool, error) {
	options := mqtt.NewClientOptions().AddBroker(url).SetClientID(id).SetCleanSession(clean)
	options.SetProtocolVersion(level).SetAutoReconnect(false).SetOrderMatters(true)
	options.SetDefaultPublishHandler(func(_ mqtt.Client, message mqtt.Message) {
		arrived(name, message.Topic(), message.Qos(), message.Retained(), message.Payload())
	})
	if will != "-" {
		options.SetWill(will, "gone", 1, false)
	}
	made := mqtt.NewClient(options)
	token := made.Connect()
	if err := ended(token); err != nil {
		return nil, false, err
	}
	return client3{made}, token.(*mqtt.ConnectToken).SessionPresent(), nil
}

func (c client3) subscribe(filter string, qos byte) (byte, error) {
	token := c.Client.Subscribe(filter, qos, nil)
	if err := ended(token); err != nil {
		return 0, err
	}
	for _, granted := range token.(*mqtt.SubscribeToken).Result() {
		return granted, nil // of a shared subscription the library knows the filter alone
	}
	return 0, errors.New("SUBACK without a code")
}

func (c client3) publish(topic string, qos byte, retain bool, bodies []string) error {
	tokens := []mqtt.Token{}
	for _, body := range bodies {
		tokens = append(tokens, c.Client.Publish(topic, qos, retain, body))
	}
	for _, token := range tokens {
		if err := ended(token); err != nil {
			return err
		}
	}
	return nil
}

func (c client3) disconnect() error {
	c.Client.Disconnect(250)
	return nil
}
