package main

import (
	"fmt"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
)

func contains(all []string, one string) bool {
	for _, each := range all {
		if each == one {
			return true
		}
	}
	return false
}

func adminTopics(s *site) error {
	tool, err := s.administrator()
	if err != nil {
		return err
	}
	defer tool.Close()
	listed := func() bool {
		found, err := tool.FetchAllTopicList(background)
		return err == nil && contains(found.TopicList, s.topic)
	}
	if err := eventually("the topic in the list", listed); err != nil {
		return err
	}
	// Made once more with other numbers: the topic changes.
	if err := s.createTopic(s.topic, 7); err != nil {
		return err
	}
	for number := 0; number < 2; number++ { // the client stores a deletion at the broker, then at each nameserver
		err = patiently(func() error {
			return tool.DeleteTopic(background, admin.WithTopicDelete(s.topic), admin.WithBrokerAddrDelete(s.broker),
				admin.WithNameSrvAddr(s.nameservers))
		})
		if err != nil {
			return fmt.Errorf("deletion %d: %w", number, err)
		}
	}
	return eventually("no topic in the list", func() bool {
		found, err := tool.FetchAllTopicList(background)
		return err == nil && !contains(found.TopicList, s.topic)
	})
}

func adminGroups(s *site) error {
	got := &seen{}
	if _, err := s.consumer(everything, got.handle); err != nil {
		return err
	}
	tool, err := s.administrator()
	if err != nil {
		return err
	}
	defer tool.Close()
	return eventually("the group in the list", func() bool {
		found, err := tool.GetAllSubscriptionGroup(background, s.broker, 5*time.Second)
		if err != nil {
			return false
		}
		group, there := found.SubscriptionGroupTable[s.group]
		return there && group.GroupName == s.group && group.ConsumeEnable && group.RetryMaxTimes == 16
	})
}
