package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func consumeClustering(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	members := [2]*seen{{}, {}}
	for _, member := range members {
		if _, err := s.consumer(everything, member.handle); err != nil {
			return err
		}
	}
	var sent []string
	err = eventually("messages at both members", func() bool {
		more := bodies(fmt.Sprintf("round-%d", len(sent)), queues)
		sent = append(sent, more...)
		err = sendAll(from, s.topic, more)
		return err != nil || len(members[0].all()) > 0 && len(members[1].all()) > 0
	})
	if err != nil {
		return err
	}
	return eventually("all messages", func() bool {
		first, second := members[0].bodies(), members[1].bodies()
		for _, body := range sent {
			if first[body]+second[body] == 0 {
				return false
			}
		}
		return true
	})
}

func consumeBroadcast(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	wanted := bodies("broadcast", 12)
	if err := sendAll(from, s.topic, wanted); err != nil {
		return err
	}
	members := [2]*seen{{}, {}}
	for _, member := range members {
		if _, err := s.consumer(everything, member.handle, consumer.WithConsumerModel(consumer.BroadCasting)); err != nil {
			return err
		}
	}
	return eventually("all messages at both members", func() bool { return members[0].has(wanted) && members[1].has(wanted) })
}

func consumeTags(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	for _, tag := range []string{"A", "B", "C", "D", "A"} {
		if _, err := send(from, primitive.NewMessage(s.topic, []byte(tag)).WithTag(tag)); err != nil {
			return err
		}
	}
	got := &seen{}
	if _, err := s.consumer(consumer.MessageSelector{Type: consumer.TAG, Expression: "A || C"}, got.handle); err != nil {
		return err
	}
	err = eventually("A and C", func() bool { return got.bodies()["A"] >= 2 && got.bodies()["C"] >= 1 })
	if err != nil {
		return err
	}
	return check(len(got.bodies()) == 2, "came: %v", got.bodies())
}

func consumeSQL(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	for number, body := range bodies("sql", 10) {
		message := primitive.NewMessage(s.topic, []byte(body))
		message.WithProperty("a", fmt.Sprint(number))
		if _, err := send(from, message); err != nil {
			return err
		}
	}
	got := &seen{}
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "a BETWEEN 3 AND 5 OR a = 9"}
	if _, err := s.consumer(selector, got.handle); err != nil {
		return err
	}
	err = eventually("3, 4, 5, 9", func() bool { return got.has([]string{"sql-3", "sql-4", "sql-5", "sql-9"}) })
	if err != nil {
		return err
	}
	return check(len(got.bodies()) == 4, "came: %v", got.bodies())
}

// failing handles a message in vain `times` times, and notes what the deliveries said.
type failing struct {
	lock  sync.Mutex
	times int
	said  []int32
}

func (f *failing) next(message *primitive.MessageExt) bool {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.said = append(f.said, message.ReconsumeTimes)
	return len(f.said) > f.times
}

func (f *failing) counts() []int32 {
	f.lock.Lock()
	defer f.lock.Unlock()
	return append([]int32(nil), f.said...)
}

// tells whether the deliveries said all of 0 to `last` and nothing else. One may come twice: a consumer that does not hear in time
// that its message was taken back sends it back again.
func (f *failing) saidUpTo(last int32) bool {
	found := map[int32]bool{}
	for _, each := range f.counts() {
		if each > last {
			return false
		}
		found[each] = true
	}
	return len(found) == int(last)+1
}

// A delay level of 1 is a second.
func (f *failing) concurrently(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	here, _ := primitive.GetConcurrentlyCtx(ctx)
	here.DelayLevelWhenNextConsume = 1
	f.next(messages[0])
	if int(messages[0].ReconsumeTimes) >= f.times {
		return consumer.ConsumeSuccess, nil
	}
	return consumer.ConsumeRetryLater, nil
}

func (f *failing) orderly(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	here, _ := primitive.GetOrderlyCtx(ctx)
	here.SuspendCurrentQueueTimeMillis = 50
	if f.next(messages[0]) {
		return consumer.ConsumeSuccess, nil
	}
	return consumer.SuspendCurrentQueueAMoment, nil
}

func (s *site) sendOne(body string) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	return sendAll(from, s.topic, []string{body})
}

func consumeRetry(s *site) error {
	if err := s.sendOne("retry"); err != nil {
		return err
	}
	handling := &failing{times: 2}
	if _, err := s.consumer(everything, handling.concurrently); err != nil {
		return err
	}
	return eventually("three deliveries", func() bool { return handling.saidUpTo(2) })
}

func consumeRetryOrdered(s *site) error {
	if err := s.sendOne("retry"); err != nil {
		return err
	}
	handling := &failing{times: 2}
	if _, err := s.consumer(everything, handling.orderly, consumer.WithConsumerOrder(true)); err != nil {
		return err
	}
	return eventually("three deliveries", func() bool { return len(handling.counts()) >= 3 })
}

func consumeDead(s *site) error {
	if err := s.sendOne("dead"); err != nil {
		return err
	}
	handling := &failing{times: 1000}
	if _, err := s.consumer(everything, handling.concurrently, consumer.WithMaxReconsumeTimes(1)); err != nil {
		return err
	}
	tool, err := s.administrator()
	if err != nil {
		return err
	}
	defer tool.Close()
	err = eventually("a topic of dead letters", func() bool {
		found, err := tool.FetchAllTopicList(background)
		return err == nil && contains(found.TopicList, "%DLQ%"+s.group)
	})
	if err != nil {
		return err
	}
	return check(handling.saidUpTo(1), "the deliveries count %v", handling.counts())
}

// A consumer begins where the one before it ended; what that one had not yet noted at its end comes again. So one of a few
// consumers after one another gets its own messages alone.
func consumeOffsets(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	var last map[string]int
	for round := 0; round < 8; round++ {
		mine := bodies(fmt.Sprintf("round-%d", round), 2*queues)
		if err := sendAll(from, s.topic, mine); err != nil {
			return err
		}
		got := &seen{}
		one, err := s.consumer(everything, got.handle)
		if err != nil {
			return err
		}
		if err := eventually("all of the round", func() bool { return got.has(mine) }); err != nil {
			return err
		}
		if err := one.Shutdown(); err != nil {
			return err
		}
		last = got.bodies()
		if round > 0 && len(last) == len(mine) {
			return nil
		}
	}
	return fmt.Errorf("the last consumer got %v", last)
}

func (s *site) puller() (rocketmq.PullConsumer, error) {
	made, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(s.resolver()), consumer.WithGroupName(s.group),
		consumer.WithInstance(s.instance()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return nil, err
	}
	if err := made.Subscribe(s.topic, everything); err != nil {
		return nil, err
	}
	if err := patiently(made.Start); err != nil {
		return nil, err
	}
	s.closing = append(s.closing, func() { _ = made.Shutdown() })
	return made, nil
}

func pullFrom(puller rocketmq.PullConsumer, queue *primitive.MessageQueue, offset int64, count int) (result *primitive.PullResult, err error) {
	err = patiently(func() error {
		result, err = puller.PullFrom(background, queue, offset, count)
		return err
	})
	return result, err
}

func pull(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	wanted := bodies("pull", 40)
	if err := sendAll(from, s.topic, wanted); err != nil {
		return err
	}
	tool, err := s.administrator()
	if err != nil {
		return err
	}
	defer tool.Close()
	var found []*primitive.MessageQueue
	err = patiently(func() (err error) {
		found, err = tool.FetchPublishMessageQueues(background, s.topic)
		return err
	})
	if err != nil {
		return err
	}
	puller, err := s.puller()
	if err != nil {
		return err
	}
	got := &seen{}
	for _, queue := range found {
		for offset := int64(0); ; { // not beyond the end: the client would wait there for 20 s
			result, err := pullFrom(puller, queue, offset, 7)
			if err != nil {
				return err
			}
			if result.Status != primitive.PullFound || len(result.GetMessageExts()) > 7 || result.NextBeginOffset <= offset {
				return fmt.Errorf("%s at %d", result, offset)
			}
			_, _ = got.handle(background, result.GetMessageExts()...)
			offset = result.NextBeginOffset
			if offset == result.MaxOffset {
				break
			}
		}
	}
	if !got.has(wanted) || len(got.bodies()) != len(wanted) {
		return fmt.Errorf("came: %v", got.bodies())
	}
	far, err := pullFrom(puller, found[0], 1000, 7)
	if err != nil {
		return err
	}
	return check(far.Status == primitive.PullOffsetIllegal, "an offset that there is not: %s", far)
}

func pollAndAcknowledge(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	wanted := bodies("poll", 20)
	if err := sendAll(from, s.topic, wanted); err != nil {
		return err
	}
	puller, err := s.puller()
	if err != nil {
		return err
	}
	got := &seen{}
	sentBack := false
	return eventually("all messages, one of them twice", func() bool {
		polled, err := puller.Poll(background, time.Second)
		if err == nil {
			_, _ = got.handle(background, polled.GetMsgList()...)
			result := consumer.ConsumeSuccess
			if !sentBack {
				sentBack, result = true, consumer.ConsumeRetryLater
			}
			puller.ACK(background, polled, result)
		}
		return got.has(wanted)
	})
}
