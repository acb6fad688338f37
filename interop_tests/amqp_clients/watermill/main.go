// Command scenarios runs Watermill over RabbitMQ's Go client, both unchanged, with the configurations that Watermill comes with;
// see program.py for what it prints.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	rabbitmq "github.com/rabbitmq/amqp091-go"

	"scenarios/harness"
)

const limit = harness.Limit

var url = harness.URL

var scenarios = []harness.Scenario{
	{"durable-queue", durableQueue},
	{"queue-without-durability", lightQueue},
	{"durable-pub-sub", durablePubSub},
	{"pub-sub-without-durability", lightPubSub},
	{"topic-exchange", topicExchange},
	{"nack-and-come-back", nacked},
	{"nack-to-the-dead-letters", deadLetters},
	{"transactions", transactions},
	{"confirms-over-a-pool-of-channels", confirms},
	{"mandatory", mandatory},
	{"queue-arguments", arguments},
	{"router", router},
	{"reconnect-after-a-restart", reconnect},
}

func main() {
	harness.Run(scenarios)
}

func unique(name string) string {
	return harness.Unique("watermill", name)
}

func logger() watermill.LoggerAdapter {
	return watermill.NewStdLoggerWithOut(os.Stderr, false, false)
}

// with gives an action a publisher and a subscriber of one configuration.
func with(config amqp.Config, action func(*amqp.Publisher, *amqp.Subscriber) error) error {
	publisher, err := amqp.NewPublisher(config, logger())
	if err != nil {
		return err
	}
	subscriber, err := amqp.NewSubscriber(config, logger())
	if err != nil {
		return errors.Join(err, publisher.Close())
	}
	return errors.Join(action(publisher, subscriber), subscriber.Close(), publisher.Close())
}

func said(body string) *message.Message {
	made := message.NewMessage(watermill.NewUUID(), []byte(body))
	made.Metadata.Set("said", "of "+body)
	return made
}

func send(publisher *amqp.Publisher, topic string, bodies ...string) error {
	var all []*message.Message
	for _, body := range bodies {
		all = append(all, said(body))
	}
	return publisher.Publish(topic, all...)
}

// took acknowledges so many messages that come, with what is wanted.
func took(messages <-chan *message.Message, bodies ...string) error {
	for _, body := range bodies {
		one, err := harness.Next(messages)
		if err != nil {
			return err
		}
		if string(one.Payload) != body || one.Metadata.Get("said") != "of "+body {
			return fmt.Errorf("%q %v, not %q", one.Payload, one.Metadata, body)
		}
		one.Ack()
	}
	return nil
}

// came reads until a message comes; others may come again, for nobody says that an acknowledgement arrived.
func came(messages <-chan *message.Message, body string) error {
	for {
		one, err := harness.Next(messages)
		if err != nil {
			return err
		}
		one.Ack()
		if string(one.Payload) == body {
			return nil
		}
	}
}

func numbered(many int) (bodies []string) {
	for number := 0; number < many; number++ {
		bodies = append(bodies, fmt.Sprint("job ", number))
	}
	return bodies
}

// thereAndBack subscribes, publishes and reads in order.
func thereAndBack(config amqp.Config, topic string) error {
	return with(config, func(publisher *amqp.Publisher, subscriber *amqp.Subscriber) error {
		messages, err := subscriber.Subscribe(context.Background(), topic)
		if err != nil {
			return err
		}
		return errors.Join(send(publisher, topic, numbered(30)...), took(messages, numbered(30)...))
	})
}

func durableQueue() error { return thereAndBack(amqp.NewDurableQueueConfig(url), unique("queue")) }

func lightQueue() error { return thereAndBack(amqp.NewNonDurableQueueConfig(url), unique("queue")) }

// everybody has two groups of subscribers to one fanout.
func everybody(made func(string, amqp.QueueNameGenerator) amqp.Config) error {
	topic := unique("news")
	return with(made(url, amqp.GenerateQueueNameTopicNameWithSuffix("one")), func(publisher *amqp.Publisher, one *amqp.Subscriber) error {
		return with(made(url, amqp.GenerateQueueNameTopicNameWithSuffix("two")), func(_ *amqp.Publisher, two *amqp.Subscriber) error {
			first, err1 := one.Subscribe(context.Background(), topic)
			second, err2 := two.Subscribe(context.Background(), topic)
			if err := errors.Join(err1, err2, send(publisher, topic, numbered(20)...)); err != nil {
				return err
			}
			return errors.Join(took(first, numbered(20)...), took(second, numbered(20)...))
		})
	})
}

func durablePubSub() error { return everybody(amqp.NewDurablePubSubConfig) }

func lightPubSub() error { return everybody(amqp.NewNonDurablePubSubConfig) }

func topicExchange() error {
	config := amqp.NewDurableTopicConfig(url, unique("exchange"), unique("queue"))
	return with(config, func(publisher *amqp.Publisher, subscriber *amqp.Subscriber) error {
		messages, err := subscriber.Subscribe(context.Background(), "orders.#")
		if err := errors.Join(err, send(publisher, "orders.eu.paid", "yes"), send(publisher, "bills.eu", "no"), send(publisher, "orders", "last")); err != nil {
			return err
		}
		return took(messages, "yes", "last")
	})
}

func nacked() error {
	topic := unique("again")
	return with(amqp.NewDurableQueueConfig(url), func(publisher *amqp.Publisher, subscriber *amqp.Subscriber) error {
		messages, err := subscriber.Subscribe(context.Background(), topic)
		if err := errors.Join(err, send(publisher, topic, "one", "two")); err != nil {
			return err
		}
		one, err := harness.Next(messages)
		if err != nil {
			return err
		}
		one.Nack()
		return took(messages, "one", "two")
	})
}

// deadLetters are read without Watermill: its marshaler takes no headers but texts, and x-death is none.
func deadLetters() error {
	topic, sink := unique("poison"), unique("sink")
	connection, err := rabbitmq.Dial(url)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if _, err := channel.QueueDeclare(sink, true, false, false, false, nil); err != nil {
		return err
	}
	config := amqp.NewDurableQueueConfig(url)
	config.Consume.NoRequeueOnNack = true
	config.Queue.Arguments = rabbitmq.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": sink}
	return with(config, func(publisher *amqp.Publisher, subscriber *amqp.Subscriber) error {
		messages, err := subscriber.Subscribe(context.Background(), topic)
		if err := errors.Join(err, send(publisher, topic, "bad")); err != nil {
			return err
		}
		one, err := harness.Next(messages)
		if err != nil {
			return err
		}
		one.Nack()
		for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			dead, ok, err := channel.Get(sink, true)
			if ok && (string(dead.Body) != "bad" || dead.Headers["x-first-death-reason"] != "rejected") {
				return fmt.Errorf("%q %v", dead.Body, dead.Headers)
			}
			if ok || err != nil {
				return err
			}
		}
		return errors.New("no dead letter")
	})
}

func transactions() error {
	config := amqp.NewDurableQueueConfig(url)
	config.Publish.Transactional = true
	return thereAndBack(config, unique("transactional"))
}

func confirms() error {
	config := amqp.NewDurableQueueConfig(url)
	config.Publish.ConfirmDelivery, config.Publish.ChannelPoolSize, config.Consume.Qos.PrefetchCount = true, 5, 50
	topic := unique("confirmed")
	return with(config, func(publisher *amqp.Publisher, subscriber *amqp.Subscriber) error {
		messages, err := subscriber.Subscribe(context.Background(), topic)
		if err != nil {
			return err
		}
		failures := make(chan error)
		for number := 0; number < 20; number++ {
			go func(body string) { failures <- send(publisher, topic, body) }(fmt.Sprintf("job %02d", number))
		}
		var bodies []string
		for number := 0; number < 20; number++ {
			if err := <-failures; err != nil {
				return err
			}
		}
		for number := 0; number < 20; number++ {
			one, err := harness.Next(messages)
			if err != nil {
				return err
			}
			bodies = append(bodies, string(one.Payload))
			one.Ack()
		}
		sort.Strings(bodies)
		if bodies[0] != "job 00" || bodies[19] != "job 19" {
			return fmt.Errorf("%v", bodies)
		}
		return nil
	})
}

// mandatory: Watermill has no listener for what comes back; the broker confirms it all the same.
func mandatory() error {
	config := amqp.NewDurableTopicConfig(url, unique("exchange"), unique("queue"))
	config.Publish.Mandatory, config.Publish.ConfirmDelivery = true, true
	return with(config, func(publisher *amqp.Publisher, subscriber *amqp.Subscriber) error {
		messages, err := subscriber.Subscribe(context.Background(), "wanted")
		if err := errors.Join(err, send(publisher, "unwanted", "lost"), send(publisher, "wanted", "kept")); err != nil {
			return err
		}
		return took(messages, "kept")
	})
}

func arguments() error {
	config := amqp.NewDurableQueueConfig(url)
	config.Queue.Arguments = rabbitmq.Table{
		"x-queue-type": "quorum", "x-delivery-limit": 3, "x-message-ttl": 60000, "x-max-length": 1000, "x-overflow": "reject-publish",
	}
	config.Consume.Qos.PrefetchCount = 10
	topic := unique("quorum")
	if err := thereAndBack(config, topic); err != nil {
		return err
	}
	config.Queue.Arguments["x-max-length"] = 5
	subscriber, err := amqp.NewSubscriber(config, logger())
	if err != nil {
		return err
	}
	defer subscriber.Close()
	if err := subscriber.SubscribeInitialize(topic); err == nil || !strings.Contains(err.Error(), "inequivalent arg 'x-max-length'") {
		return fmt.Errorf("declared again with another limit: %v", err)
	}
	return nil
}

// router moves messages from one topic to another by a handler.
func router() error {
	from, to := unique("from"), unique("to")
	return with(amqp.NewDurableQueueConfig(url), func(publisher *amqp.Publisher, subscriber *amqp.Subscriber) error {
		made, err := message.NewRouter(message.RouterConfig{}, logger())
		if err != nil {
			return err
		}
		tries := 0
		made.AddHandler("moves", from, subscriber, to, publisher, func(one *message.Message) ([]*message.Message, error) {
			if tries++; tries == 1 {
				return nil, errors.New("not yet")
			}
			return []*message.Message{said("moved " + string(one.Payload))}, nil
		})
		ran := make(chan error)
		go func() { ran <- made.Run(context.Background()) }()
		<-made.Running()
		messages, err := subscriber.Subscribe(context.Background(), to)
		if err == nil {
			err = errors.Join(send(publisher, from, "one", "two"), took(messages, "moved one", "moved two"))
		}
		return errors.Join(err, made.Close(), <-ran)
	})
}

func reconnect() error {
	topic, config := unique("again"), amqp.NewDurableQueueConfig(url)
	config.Publish.ConfirmDelivery = true // without, what is written as the broker goes is lost unnoticed
	return with(config, func(publisher *amqp.Publisher, subscriber *amqp.Subscriber) error {
		messages, err := subscriber.Subscribe(context.Background(), topic)
		if err := errors.Join(err, send(publisher, topic, "before"), took(messages, "before")); err != nil {
			return err
		}
		harness.Outside("restart")
		for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
			if err := send(publisher, topic, "after"); err == nil {
				return came(messages, "after")
			} else if time.Now().After(end) {
				return err
			}
		}
	})
}
