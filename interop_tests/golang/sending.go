package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var background = context.Background()

func sendAll(from rocketmq.Producer, topic string, all []string) error {
	for _, body := range all {
		result, err := send(from, primitive.NewMessage(topic, []byte(body)))
		if err != nil {
			return fmt.Errorf("send %s: %w", body, err)
		}
		if result.Status != primitive.SendOK {
			return fmt.Errorf("send %s: status %d", body, result.Status)
		}
	}
	return nil
}

// arrive waits until a consumer of the scenario's topic has these bodies, and gives all that came.
func (s *site) arrive(wanted []string) (*seen, error) {
	got := &seen{}
	if _, err := s.consumer(everything, got.handle); err != nil {
		return nil, err
	}
	err := eventually(fmt.Sprintf("%d messages of %s", len(wanted), s.topic), func() bool { return got.has(wanted) })
	return got, err
}

func sendSync(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	wanted := bodies("sync", 20)
	used := map[int]bool{}
	for number, body := range wanted {
		message := primitive.NewMessage(s.topic, []byte(body)).WithTag("T").WithKeys([]string{"key-" + body})
		message.WithProperty("color", "blue & green")
		result, err := send(from, message)
		if err != nil {
			return err
		}
		if result.Status != primitive.SendOK || result.MsgID == "" || len(result.OffsetMsgID) != 32 {
			return fmt.Errorf("send %d: %s", number, result)
		}
		used[result.MessageQueue.QueueId] = true
	}
	if len(used) != queues {
		return fmt.Errorf("only the queues %v were used", used)
	}
	got, err := s.arrive(wanted)
	if err != nil {
		return err
	}
	for _, message := range got.all() {
		right := message.GetTags() == "T" && strings.TrimSpace(message.GetKeys()) == "key-"+string(message.Body)
		if !right || message.GetProperty("color") != "blue & green" || message.Topic != s.topic {
			return fmt.Errorf("came as %s", message)
		}
	}
	return nil
}

func sendAsync(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	wanted := bodies("async", 100)
	type answer struct {
		body string
		err  error
	}
	answers := make(chan answer, len(wanted))
	for _, body := range wanted {
		body := body
		err := from.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
			if err == nil && result.Status != primitive.SendOK {
				err = fmt.Errorf("status %d", result.Status)
			}
			answers <- answer{body, err}
		}, primitive.NewMessage(s.topic, []byte(body)))
		if err != nil {
			return err
		}
	}
	var late []string // the client waits three seconds for its answer
	for range wanted {
		if got := <-answers; got.err != nil {
			if !passing(got.err) {
				return fmt.Errorf("send %s: %w", got.body, got.err)
			}
			late = append(late, got.body)
		}
	}
	if len(late) == len(wanted) {
		return fmt.Errorf("no answer at all")
	}
	if err := sendAll(from, s.topic, late); err != nil {
		return err
	}
	_, err = s.arrive(wanted)
	return err
}

func sendOneWay(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	wanted := bodies("one-way", 10)
	for _, body := range wanted {
		if err := from.SendOneWay(background, primitive.NewMessage(s.topic, []byte(body))); err != nil {
			return err
		}
	}
	_, err = s.arrive(wanted)
	return err
}

func sendBatch(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	wanted := bodies("batch", 16)
	messages := make([]*primitive.Message, len(wanted))
	for number, body := range wanted {
		messages[number] = primitive.NewMessage(s.topic, []byte(body)).WithTag("B")
	}
	result, err := send(from, messages...)
	if err != nil {
		return err
	}
	if found := len(strings.Split(result.OffsetMsgID, ",")); result.Status != primitive.SendOK || found != len(wanted) {
		return fmt.Errorf("the batch got %s", result)
	}
	got, err := s.arrive(wanted)
	if err != nil {
		return err
	}
	together := map[string]bool{}
	for _, message := range got.all() {
		if message.GetTags() != "B" {
			return fmt.Errorf("came as %s", message)
		}
		if message.Queue.QueueId == result.MessageQueue.QueueId {
			together[string(message.Body)] = true
		}
	}
	return check(len(together) == len(wanted), "in the queue of the answer are %v", together)
}

func sendCompressed(s *site) error {
	from, err := s.producer(producer.WithCompressMsgBodyOverHowmuch(100))
	if err != nil {
		return err
	}
	body := bytes.Repeat([]byte("compressible "), 5000)
	if _, err := send(from, primitive.NewMessage(s.topic, body)); err != nil {
		return err
	}
	got, err := s.arrive([]string{string(body)})
	if err != nil {
		return err
	}
	first := got.all()[0]
	return check(first.SysFlag&1 == 1 && first.StoreSize < 5000, "stored plain: flag %d, %d bytes", first.SysFlag, first.StoreSize)
}

func sendOrdered(s *site) error {
	from, err := s.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	if err != nil {
		return err
	}
	const keys, each = 6, 15
	for number := 0; number < each; number++ {
		for key := 0; key < keys; key++ {
			message := primitive.NewMessage(s.topic, []byte(strconv.Itoa(number))).WithShardingKey(fmt.Sprintf("order-%d", key))
			if _, err := send(from, message); err != nil {
				return err
			}
		}
	}
	var lock sync.Mutex
	next := map[string]int{}
	wrong := ""
	handle := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, message := range messages {
			key := message.GetShardingKey()
			number, _ := strconv.Atoi(string(message.Body))
			if number > next[key] {
				wrong = fmt.Sprintf("%s: %d came when %d was next", key, number, next[key])
			}
			if number == next[key] {
				next[key]++
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	if _, err := s.consumer(everything, handle, consumer.WithConsumerOrder(true)); err != nil {
		return err
	}
	err = eventually("all in order", func() bool {
		lock.Lock()
		defer lock.Unlock()
		all := 0
		for _, count := range next {
			all += count
		}
		return all == keys*each || wrong != ""
	})
	lock.Lock()
	defer lock.Unlock()
	if wrong != "" {
		return fmt.Errorf("%s", wrong)
	}
	return err
}

// later sends one message and checks how long it was away.
func (s *site) later(message *primitive.Message, least time.Duration) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	sent := time.Now()
	if _, err := send(from, message); err != nil {
		return err
	}
	if _, err := s.arrive([]string{string(message.Body)}); err != nil {
		return err
	}
	return check(time.Since(sent) >= least, "came after %s", time.Since(sent))
}

func sendDelayed(s *site) error {
	return s.later(primitive.NewMessage(s.topic, []byte("delayed")).WithDelayTimeLevel(2), 5*time.Second)
}

func sendTimed(s *site) error {
	message := primitive.NewMessage(s.topic, []byte("timed"))
	message.WithProperty("TIMER_DELAY_MS", "2500")
	return s.later(message, 2*time.Second)
}

// decisions of a transactional producer: what a body's first word says, first at once, then when asked.
type decisions struct {
	lock  sync.Mutex
	asked map[string]int
}

func decided(word string) primitive.LocalTransactionState {
	switch word {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (d *decisions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return decided(strings.Split(string(message.Body), " ")[0])
}

func (d *decisions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	d.lock.Lock()
	defer d.lock.Unlock()
	body := string(message.Body)
	d.asked[body]++
	return decided(strings.Split(body, " ")[1])
}

func (d *decisions) wereAsked(bodies ...string) bool {
	d.lock.Lock()
	defer d.lock.Unlock()
	for _, body := range bodies {
		if d.asked[body] == 0 {
			return false
		}
	}
	return true
}

func sendTransactions(s *site) error {
	listener := &decisions{asked: map[string]int{}}
	from, err := rocketmq.NewTransactionProducer(listener, producer.WithNsResolver(s.resolver()),
		producer.WithGroupName(s.group+"-p"), producer.WithInstanceName(s.instance()), producer.WithRetry(2))
	if err != nil {
		return err
	}
	if err := from.Start(); err != nil {
		return err
	}
	defer from.Shutdown()
	for _, body := range []string{"commit now", "rollback now", "ask commit", "ask rollback", "ask unknown"} {
		var result *primitive.TransactionSendResult
		err := patiently(func() (err error) {
			result, err = from.SendMessageInTransaction(background, primitive.NewMessage(s.topic, []byte(body)))
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", body, err)
		}
		if result.SendResult.Status != primitive.SendOK {
			return fmt.Errorf("%s: %s", body, result)
		}
	}
	got, err := s.arrive([]string{"commit now", "ask commit"})
	if err != nil {
		return err
	}
	err = eventually("every check", func() bool { return listener.wereAsked("ask commit", "ask rollback", "ask unknown") })
	if err != nil {
		return err
	}
	return check(len(got.bodies()) == 2, "came: %v", got.bodies())
}

func request(s *site) error {
	from, err := s.producer()
	if err != nil {
		return err
	}
	replier, err := s.producer(producer.WithGroupName(s.group + "-replier"))
	if err != nil {
		return err
	}
	failed := make(chan error, 100)
	handle := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			reply, err := consumer.CreateReplyMessage(message, nil)
			if err == nil {
				reply.Body = append([]byte("re: "), message.Body...) // the client's own function forgets it
				_, err = replier.SendSync(ctx, reply)
			}
			if err != nil {
				failed <- err
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	if _, err := s.consumer(everything, handle); err != nil {
		return err
	}
	// The broker knows the requester from its first heartbeat on, which the client sends later than its first requests.
	var last error
	wait := 4 * time.Second
	for end := time.Now().Add(limit); time.Now().Before(end); wait += time.Second {
		reply, err := from.Request(background, wait, primitive.NewMessage(s.topic, []byte("question")))
		if err == nil {
			return check(string(reply.Body) == "re: question", "the reply is %q", reply.Body)
		}
		last = err
		if !passing(err) {
			break
		}
	}
	select {
	case err := <-failed:
		return fmt.Errorf("%v; the replier: %w", last, err)
	default:
		return last
	}
}

func sendTraced(s *site) error {
	// The client sends traces to a topic that there is: it would not have one made.
	traces := s.topic + "-traces"
	if err := s.createTopic(traces, 1); err != nil {
		return err
	}
	from, err := s.producer(producer.WithTrace(&primitive.TraceConfig{Access: primitive.Local, Resolver: s.resolver(),
		TraceTopic: traces, GroupName: s.group + "-trace"}))
	if err != nil {
		return err
	}
	result, err := send(from, primitive.NewMessage(s.topic, []byte("traced")))
	if err != nil {
		return err
	}
	got := &seen{}
	looker := &site{nameservers: s.nameservers, name: s.name + "-looker", topic: traces, group: s.group + "-looker"}
	defer looker.close()
	if _, err := looker.consumer(everything, got.handle); err != nil {
		return err
	}
	return eventually("a trace of "+result.MsgID, func() bool {
		for _, trace := range got.all() {
			if strings.Contains(string(trace.Body), result.MsgID) && strings.Contains(trace.GetKeys(), result.MsgID) {
				return true
			}
		}
		return false
	})
}
