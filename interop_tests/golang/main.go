// Command scenarios runs RocketMQ's own Go client, unchanged, through what it can do. It prints a line "RESULT name ok" or
// "RESULT name what was wrong" for each scenario, a line "TOOK name time" before it, and "END" when all are done.
//
// Every scenario has a topic and groups of its own; all run at once, because most of their time is the client's waiting.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	queues = 4
	// The client looks at its queues every 20 s, if a notice was lost.
	limit = 200 * time.Second
	poll  = 20 * time.Millisecond
)

// A site is what one scenario has: the servers' addresses and names that nobody else uses.
type site struct {
	nameservers []string
	broker      string
	name        string
	topic       string
	group       string

	lock    sync.Mutex
	count   int
	closing []func()
}

type scenario struct {
	name string
	run  func(*site) error
}

var scenarios = []scenario{
	{"sync", sendSync}, {"async", sendAsync}, {"one-way", sendOneWay}, {"batch", sendBatch}, {"compressed", sendCompressed},
	{"ordered", sendOrdered}, {"delay-level", sendDelayed}, {"timer", sendTimed}, {"transaction", sendTransactions},
	{"request-reply", request}, {"trace", sendTraced},
	{"clustering", consumeClustering}, {"broadcast", consumeBroadcast}, {"tag-filter", consumeTags}, {"sql-filter", consumeSQL},
	{"retry", consumeRetry}, {"retry-ordered", consumeRetryOrdered}, {"dead-letter", consumeDead}, {"offsets", consumeOffsets},
	{"pull", pull}, {"poll", pollAndAcknowledge},
	{"topics", adminTopics}, {"groups", adminGroups},
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: scenarios NAMESERVERS BROKER PREFIX [SCENARIO...]")
		os.Exit(2)
	}
	rlog.SetLogLevel("error")
	var lock sync.Mutex
	var done sync.WaitGroup
	for _, each := range scenarios {
		if len(os.Args) > 4 && !contains(os.Args[4:], each.name) {
			continue
		}
		done.Add(1)
		go func(each scenario) {
			defer done.Done()
			begun := time.Now()
			result := "ok"
			if err := guarded(each); err != nil {
				result = strings.ReplaceAll(err.Error(), "\n", " ")
			}
			lock.Lock()
			defer lock.Unlock()
			fmt.Println("TOOK", each.name, time.Since(begun).Round(time.Millisecond))
			fmt.Println("RESULT", each.name, result)
		}(each)
	}
	done.Wait()
	fmt.Println("END")
}

// A panic of one scenario leaves the others alone.
func guarded(each scenario) (err error) {
	here := &site{nameservers: strings.Split(os.Args[1], ";"), broker: os.Args[2], name: each.name}
	here.topic = os.Args[3] + "-" + each.name
	here.group = os.Args[3] + "-group-" + each.name
	defer here.close()
	defer func() {
		if found := recover(); found != nil {
			err = fmt.Errorf("panic: %v", found)
		}
	}()
	if err := here.createTopic(here.topic, queues); err != nil {
		return err
	}
	return each.run(here)
}

func (s *site) close() {
	for i := len(s.closing) - 1; i >= 0; i-- {
		s.closing[i]()
	}
}

// instance is a name of a client: two clients of one name would be one.
func (s *site) instance() string {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.count++
	return fmt.Sprintf("%s-%d", s.name, s.count)
}

func (s *site) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver(s.nameservers)
}

func (s *site) administrator() (admin.Admin, error) {
	made, err := admin.NewAdmin(admin.WithResolver(s.resolver()))
	if err != nil {
		return nil, err
	}
	return made, nil
}

// createTopic returns when the nameserver knows the topic.
func (s *site) createTopic(topic string, count int) error {
	tool, err := s.administrator()
	if err != nil {
		return err
	}
	defer tool.Close()
	err = patiently(func() error {
		return tool.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(s.broker),
			admin.WithReadQueueNums(count), admin.WithWriteQueueNums(count))
	})
	if err != nil {
		return fmt.Errorf("create %s: %w", topic, err)
	}
	return eventually("a route of "+topic, func() bool {
		asking, err := s.administrator() // each of its own: they keep the first route they get
		if err != nil {
			return false
		}
		defer asking.Close()
		found, err := asking.FetchPublishMessageQueues(context.Background(), topic)
		return err == nil && len(found) == count
	})
}

func (s *site) producer(options ...producer.Option) (rocketmq.Producer, error) {
	all := []producer.Option{producer.WithNsResolver(s.resolver()), producer.WithGroupName(s.group + "-p"),
		producer.WithInstanceName(s.instance()), producer.WithRetry(2)}
	made, err := rocketmq.NewProducer(append(all, options...)...)
	if err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	s.closing = append(s.closing, func() { _ = made.Shutdown() })
	return made, nil
}

type handler = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

var everything = consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}

// consumer starts a push consumer of the scenario's topic.
func (s *site) consumer(selector consumer.MessageSelector, handle handler, options ...consumer.Option) (made rocketmq.PushConsumer, err error) {
	err = patiently(func() error {
		made, err = s.consumerOnce(selector, handle, options...)
		return err
	})
	return made, err
}

func (s *site) consumerOnce(selector consumer.MessageSelector, handle handler, options ...consumer.Option) (rocketmq.PushConsumer, error) {
	all := []consumer.Option{consumer.WithNsResolver(s.resolver()), consumer.WithGroupName(s.group),
		consumer.WithInstance(s.instance()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}
	made, err := rocketmq.NewPushConsumer(append(all, options...)...)
	if err != nil {
		return nil, err
	}
	if err := made.Subscribe(s.topic, selector, handle); err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	s.closing = append(s.closing, func() { _ = made.Shutdown() })
	return made, nil
}

// seen collects what a consumer got.
type seen struct {
	lock     sync.Mutex
	messages []*primitive.MessageExt
}

func (s *seen) handle(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.messages = append(s.messages, messages...)
	return consumer.ConsumeSuccess, nil
}

func (s *seen) all() []*primitive.MessageExt {
	s.lock.Lock()
	defer s.lock.Unlock()
	return append([]*primitive.MessageExt(nil), s.messages...)
}

// bodies are the different bodies seen, with how often.
func (s *seen) bodies() map[string]int {
	found := map[string]int{}
	for _, message := range s.all() {
		found[string(message.Body)]++
	}
	return found
}

// has tells whether all of these bodies were seen.
func (s *seen) has(wanted []string) bool {
	found := s.bodies()
	for _, body := range wanted {
		if found[body] == 0 {
			return false
		}
	}
	return true
}

func eventually(what string, condition func() bool) error {
	end := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(end) {
			return fmt.Errorf("not within %s: %s", limit, what)
		}
		time.Sleep(poll)
	}
	return nil
}

// passing tells whether an error says that an answer was late or a route is not known yet: no refusal of a server.
func passing(err error) bool {
	text := strings.ToLower(err.Error())
	if strings.Contains(text, "code:") {
		return false
	}
	for _, late := range []string{"timeout", "deadline exceeded", "route info not found", "topic not exist", "no queue is founded", "broker can not found"} {
		if strings.Contains(text, late) {
			return true
		}
	}
	return false
}

// patiently does a thing until it works or is refused. The client gives each request three seconds or so, whatever the machine does beside.
func patiently(action func() error) error {
	end := time.Now().Add(limit)
	for {
		err := action()
		if err == nil || !passing(err) || time.Now().After(end) {
			return err
		}
		time.Sleep(poll)
	}
}

// send is SendSync, patiently: what was not answered in time may be there twice.
func send(from rocketmq.Producer, messages ...*primitive.Message) (result *primitive.SendResult, err error) {
	err = patiently(func() error {
		result, err = from.SendSync(context.Background(), messages...)
		return err
	})
	return result, err
}

// bodies "name-0" to "name-(count-1)".
func bodies(name string, count int) []string {
	made := make([]string, count)
	for i := range made {
		made[i] = fmt.Sprintf("%s-%d", name, i)
	}
	return made
}

func check(condition bool, format string, values ...interface{}) error {
	if condition {
		return nil
	}
	return fmt.Errorf(format, values...)
}
