package main

import (
	"context"
	"net"
	"strings"

	"github.com/eclipse/paho.golang/paho"
)

// paho.golang: MQTT 5.0.
type client5 struct{ *paho.Client }

func connect5(name, url, id string, clean bool, will string) (client, bool, error) {
	connection, err := net.Dial("tcp", strings.TrimPrefix(url, "tcp://"))
	if err != nil {
		return nil, false, err
	}
	made := paho.NewClient(paho.ClientConfig{
		ClientID: id,
		Conn:     connection,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(got paho.PublishReceived) (bool, error) {
			arrived(name, got.Packet.Topic, got.Packet.QoS, got.Packet.Retain, got.Packet.Payload)
			return true, nil
		}},
	})
	packet := &paho.Connect{ClientID: id, CleanStart: clean, KeepAlive: 30}
	if !clean {
		expiry := uint32(3600)
		packet.Properties = &paho.ConnectProperties{SessionExpiryInterval: &expiry}
	}
	if will != "-" {
		packet.WillMessage = &paho.WillMessage{Topic: will, Payload: []byte("gone"), QoS: 1}
	}
	limit, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	answer, err := made.Connect(limit, packet)
	if err != nil {
		return nil, false, err
	}
	return client5{made}, answer.SessionPresent, nil
}

func (c client5) subscribe(filter string, qos byte) (byte, error) {
	limit, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	wanted := &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: qos}}}
	answer, err := c.Client.Subscribe(limit, wanted)
	if err != nil {
		return 0, err
	}
	return answer.Reasons[0], nil
}

// One after the other: `Publish` returns when it is acknowledged.
func (c client5) publish(topic string, qos byte, retain bool, bodies []string) error {
	limit, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for _, body := range bodies {
		packet := &paho.Publish{Topic: topic, QoS: qos, Retain: retain, Payload: []byte(body)}
		if _, err := c.Client.Publish(limit, packet); err != nil {
			return err
		}
	}
	return nil
}

func (c client5) disconnect() error {
	return c.Client.Disconnect(&paho.Disconnect{ReasonCode: 0})
}
