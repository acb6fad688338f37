// Command scenarios runs RabbitMQ's Go client, unchanged, through what applications do with it; see program.py for what it prints.
package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"scenarios/harness"
)

const limit = harness.Limit

var url = harness.URL

var scenarios = []harness.Scenario{
	{"publish-and-consume", publishAndConsume},
	{"confirms", confirms},
	{"nack-to-the-dead-letters", deadLetters},
	{"mandatory-return", mandatory},
	{"headers-of-every-type", headers},
	{"routing", routing},
	{"queue-arguments", arguments},
	{"transactions", transactions},
	{"consumers-are-told", cancelled},
	{"errors-close-the-channel-only", failures},
	{"reconnect-after-a-restart", reconnect},
}

func main() {
	harness.Run(scenarios)
}

func unique(name string) string {
	return harness.Unique("go", name)
}

// with gives an action a connection and a channel of its own.
func with(action func(*amqp.Channel, *amqp.Connection) error) error {
	connection, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	return action(channel, connection)
}

// publish waits until the broker has it.
func publish(channel *amqp.Channel, exchange, key, body string, properties amqp.Publishing) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	properties.Body = []byte(body)
	confirmation, err := channel.PublishWithDeferredConfirmWithContext(ctx, exchange, key, false, false, properties)
	if err != nil {
		return err
	}
	if ok, err := confirmation.WaitContext(ctx); err != nil || !ok {
		return fmt.Errorf("not confirmed: %v %v", ok, err)
	}
	return nil
}

func get(channel *amqp.Channel, queue string) (amqp.Delivery, error) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		delivery, ok, err := channel.Get(queue, false)
		if ok || err != nil {
			return delivery, err
		}
	}
	return amqp.Delivery{}, errors.New("nothing came to " + queue)
}

func same(seen, wanted any) error {
	if !reflect.DeepEqual(seen, wanted) {
		return fmt.Errorf("%#v, not %#v", seen, wanted)
	}
	return nil
}

func publishAndConsume() error {
	return with(func(channel *amqp.Channel, _ *amqp.Connection) error {
		queue, err := channel.QueueDeclare(unique("jobs"), true, false, false, false, nil)
		if err != nil {
			return err
		}
		if err := errors.Join(channel.Confirm(false), channel.Qos(5, 0, false)); err != nil {
			return err
		}
		deliveries, err := channel.Consume(queue.Name, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for number := 0; number < 50; number++ {
			if err := publish(channel, "", queue.Name, fmt.Sprint("job ", number), amqp.Publishing{DeliveryMode: amqp.Persistent}); err != nil {
				return err
			}
		}
		for number := 0; number < 50; number++ {
			delivery, err := harness.Next(deliveries)
			if err := errors.Join(err, same(string(delivery.Body), fmt.Sprint("job ", number)), delivery.Ack(false)); err != nil {
				return err
			}
		}
		left, err := channel.QueueDelete(queue.Name, false, true, false)
		return errors.Join(err, same(left, 0))
	})
}

func confirms() error {
	return with(func(channel *amqp.Channel, _ *amqp.Connection) error {
		queue, err := channel.QueueDeclare("", false, false, true, false, amqp.Table{"x-max-length": 150, "x-overflow": "reject-publish"})
		if err := errors.Join(err, channel.Confirm(false)); err != nil {
			return err
		}
		said := channel.NotifyPublish(make(chan amqp.Confirmation, 200))
		for number := 0; number < 200; number++ {
			if err := channel.PublishWithContext(context.Background(), "", queue.Name, false, false, amqp.Publishing{Body: []byte("x")}); err != nil {
				return err
			}
		}
		taken := map[bool]int{}
		for number := uint64(1); number <= 200; number++ {
			select {
			case each := <-said:
				if err := same(each.DeliveryTag, number); err != nil {
					return err
				}
				taken[each.Ack]++
			case <-time.After(limit):
				return fmt.Errorf("confirmation %d did not come", number)
			}
		}
		return same(taken, map[bool]int{true: 150, false: 50})
	})
}

func deadLetters() error {
	return with(func(channel *amqp.Channel, _ *amqp.Connection) error {
		exchange := unique("dead")
		sink, err := channel.QueueDeclare("", false, false, true, false, nil)
		err = errors.Join(err, channel.ExchangeDeclare(exchange, "fanout", false, true, false, false, nil),
			channel.QueueBind(sink.Name, "", exchange, false, nil), channel.Confirm(false))
		if err != nil {
			return err
		}
		queue, err := channel.QueueDeclare("", false, false, true, false, amqp.Table{"x-dead-letter-exchange": exchange})
		if err := errors.Join(err, publish(channel, "", queue.Name, "poison", amqp.Publishing{})); err != nil {
			return err
		}
		taken, err := get(channel, queue.Name)
		if err := errors.Join(err, taken.Nack(false, false)); err != nil {
			return err
		}
		dead, err := get(channel, sink.Name)
		if err != nil {
			return err
		}
		deaths, ok := dead.Headers["x-death"].([]any)
		if !ok || len(deaths) != 1 {
			return fmt.Errorf("x-death is %#v", dead.Headers["x-death"])
		}
		death := deaths[0].(amqp.Table)
		return errors.Join(same(death["count"], int64(1)), same(death["reason"], "rejected"), same(death["queue"], queue.Name), dead.Ack(false))
	})
}

func mandatory() error {
	return with(func(channel *amqp.Channel, _ *amqp.Connection) error {
		returns := channel.NotifyReturn(make(chan amqp.Return, 1))
		if err := channel.PublishWithContext(context.Background(), "amq.direct", unique("nobody"), true, false, amqp.Publishing{Body: []byte("lost")}); err != nil {
			return err
		}
		select {
		case returned := <-returns:
			return errors.Join(same(returned.ReplyCode, uint16(amqp.NoRoute)), same(returned.ReplyText, "NO_ROUTE"), same(string(returned.Body), "lost"))
		case <-time.After(limit):
			return errors.New("nothing was returned")
		}
	})
}

func headers() error {
	return with(func(channel *amqp.Channel, _ *amqp.Connection) error {
		queue, err := channel.QueueDeclare("", false, false, true, false, nil)
		if err := errors.Join(err, channel.Confirm(false)); err != nil {
			return err
		}
		moment := time.Unix(1700000000, 0)
		given := amqp.Table{
			"bool": true, "int8": int8(-8), "int16": int16(-16), "int32": int32(-32), "int64": int64(-64), "float32": float32(1.5), "float64": 2.5,
			"decimal": amqp.Decimal{Scale: 2, Value: 314}, "text": "ä", "bytes": []byte{0, 255}, "time": moment, "nothing": nil,
			"list": []any{int32(1), "b"}, "table": amqp.Table{"inner": amqp.Table{"deep": "yes"}},
		}
		sent := amqp.Publishing{
			Headers: given, ContentType: "text/plain", ContentEncoding: "utf-8", DeliveryMode: amqp.Persistent, Priority: 3, CorrelationId: "c",
			ReplyTo: "r", Expiration: "60000", MessageId: "m", Timestamp: moment, Type: "t", UserId: "guest", AppId: "a",
		}
		if err := publish(channel, "", queue.Name, "body", sent); err != nil {
			return err
		}
		seen, err := get(channel, queue.Name)
		if err != nil {
			return err
		}
		back := amqp.Publishing{
			Headers: seen.Headers, ContentType: seen.ContentType, ContentEncoding: seen.ContentEncoding, DeliveryMode: seen.DeliveryMode,
			Priority: seen.Priority, CorrelationId: seen.CorrelationId, ReplyTo: seen.ReplyTo, Expiration: seen.Expiration, MessageId: seen.MessageId,
			Timestamp: seen.Timestamp, Type: seen.Type, UserId: seen.UserId, AppId: seen.AppId,
		}
		return errors.Join(same(back, sent), seen.Ack(false))
	})
}

func routing() error {
	return with(func(channel *amqp.Channel, _ *amqp.Connection) error {
		topic, other := unique("topic"), unique("other")
		queue, err := channel.QueueDeclare("", false, false, true, false, nil)
		err = errors.Join(err, channel.ExchangeDeclare(topic, "topic", false, true, false, false, nil),
			channel.ExchangeDeclare(other, "headers", false, true, true, false, nil), channel.ExchangeBind(other, "a.#", topic, false, nil),
			channel.QueueBind(queue.Name, "", other, false, amqp.Table{"x-match": "any", "kind": "x", "size": int32(2)}), channel.Confirm(false))
		if err != nil {
			return err
		}
		for _, each := range []struct{ key, kind, body string }{{"a.b", "x", "1"}, {"b.b", "x", "not"}, {"a", "y", "not"}, {"a", "x", "2"}} {
			if err := publish(channel, topic, each.key, each.body, amqp.Publishing{Headers: amqp.Table{"kind": each.kind}}); err != nil {
				return err
			}
		}
		first, err := get(channel, queue.Name)
		second, err2 := get(channel, queue.Name)
		left, err3 := channel.QueueDeclarePassive(queue.Name, false, false, true, false, nil)
		return errors.Join(err, err2, err3, same(string(first.Body)+string(second.Body), "12"), same(left.Messages, 0), second.Ack(true))
	})
}

func arguments() error {
	return with(func(channel *amqp.Channel, _ *amqp.Connection) error {
		sink, err := channel.QueueDeclare("", false, false, true, false, nil)
		if err := errors.Join(err, channel.Confirm(false)); err != nil {
			return err
		}
		short, err := channel.QueueDeclare("", false, false, true, false, amqp.Table{
			amqp.QueueMessageTTLArg: int32(30), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": sink.Name, amqp.QueueTTLArg: int32(60000),
		})
		if err := errors.Join(err, publish(channel, "", short.Name, "old", amqp.Publishing{})); err != nil {
			return err
		}
		old, err := get(channel, sink.Name)
		if err := errors.Join(err, same(string(old.Body), "old")); err != nil {
			return err
		}
		quorum, err := channel.QueueDeclare(unique("quorum"), true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
		if err := errors.Join(err, publish(channel, "", quorum.Name, "counted", amqp.Publishing{})); err != nil {
			return err
		}
		once, err := get(channel, quorum.Name)
		if err := errors.Join(err, once.Nack(false, true)); err != nil {
			return err
		}
		twice, err := get(channel, quorum.Name)
		_, err2 := channel.QueueDelete(quorum.Name, false, false, false)
		return errors.Join(err, err2, same(twice.Redelivered, true), same(twice.Headers["x-delivery-count"], int64(1)))
	})
}

func transactions() error {
	return with(func(channel *amqp.Channel, _ *amqp.Connection) error {
		queue, err := channel.QueueDeclare("", false, false, true, false, nil)
		if err := errors.Join(err, channel.Tx()); err != nil {
			return err
		}
		send := func(body string) error {
			return channel.PublishWithContext(context.Background(), "", queue.Name, false, false, amqp.Publishing{Body: []byte(body)})
		}
		if err := errors.Join(send("forgotten"), channel.TxRollback(), send("kept"), channel.TxCommit()); err != nil {
			return err
		}
		kept, err := get(channel, queue.Name)
		if err := errors.Join(err, same(string(kept.Body), "kept"), kept.Ack(false), channel.TxCommit()); err != nil {
			return err
		}
		_, more, err := channel.Get(queue.Name, false)
		return errors.Join(err, same(more, false))
	})
}

func cancelled() error {
	return with(func(channel *amqp.Channel, connection *amqp.Connection) error {
		queue, err := channel.QueueDeclare(unique("short"), true, false, false, false, nil)
		if err != nil {
			return err
		}
		told := channel.NotifyCancel(make(chan string, 1))
		if _, err := channel.Consume(queue.Name, "me", false, false, false, false, nil); err != nil {
			return err
		}
		other, err := connection.Channel()
		if err != nil {
			return err
		}
		if _, err := other.QueueDelete(queue.Name, false, false, false); err != nil {
			return err
		}
		select {
		case tag := <-told:
			return same(tag, "me")
		case <-time.After(limit):
			return errors.New("nobody said that the queue is gone")
		}
	})
}

func failures() error {
	return with(func(channel *amqp.Channel, connection *amqp.Connection) error {
		_, err := channel.QueueDeclarePassive("no-such-queue", false, false, false, false, nil)
		wanted := &amqp.Error{Code: 404, Reason: "NOT_FOUND - no queue 'no-such-queue' in vhost '/'", Server: true, Recover: false}
		var found *amqp.Error
		if !errors.As(err, &found) || found.Code != wanted.Code || found.Reason != wanted.Reason {
			return fmt.Errorf("a missing queue: %v", err)
		}
		next, err := connection.Channel()
		if err != nil {
			return err
		}
		err = next.ExchangeDeclare("amq.direct", "fanout", true, false, false, false, nil)
		if !errors.As(err, &found) || found.Code != 406 || !strings.Contains(found.Reason, "inequivalent arg 'type' for exchange 'amq.direct' in vhost '/'") {
			return fmt.Errorf("another type: %v", err)
		}
		if connection.IsClosed() {
			return errors.New("the connection was closed, too")
		}
		_, err = amqp.Dial(strings.Replace(url, "guest:guest", "guest:wrong", 1))
		if !errors.As(err, &found) || found.Code != 403 {
			return fmt.Errorf("a wrong password: %v", err)
		}
		return nil
	})
}

func reconnect() error {
	queue := unique("kept")
	var told chan *amqp.Error
	err := with(func(channel *amqp.Channel, connection *amqp.Connection) error {
		told = connection.NotifyClose(make(chan *amqp.Error, 1))
		_, err := channel.QueueDeclare(queue, true, false, false, false, nil)
		if err := errors.Join(err, channel.Confirm(false)); err != nil {
			return err
		}
		for number := 0; number < 20; number++ {
			if err := publish(channel, "", queue, fmt.Sprint(number), amqp.Publishing{DeliveryMode: amqp.Persistent}); err != nil {
				return err
			}
		}
		first, err := get(channel, queue)
		if err := errors.Join(err, first.Ack(false)); err != nil {
			return err
		}
		if _, err := get(channel, queue); err != nil {
			return err
		}
		harness.Outside("restart")
		select {
		case <-told:
			return nil
		case <-time.After(limit):
			return errors.New("the connection's end was not noticed")
		}
	})
	if err != nil {
		return err
	}
	return with(func(channel *amqp.Channel, _ *amqp.Connection) error {
		deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for number := 1; number < 20; number++ {
			delivery, err := harness.Next(deliveries)
			if err := errors.Join(err, same(string(delivery.Body), fmt.Sprint(number)), delivery.Ack(false)); err != nil {
				return err
			}
			if number == 1 && !delivery.Redelivered {
				return errors.New("not marked as redelivered")
			}
		}
		_, err = channel.QueueDelete(queue, false, false, false)
		return err
	})
}
