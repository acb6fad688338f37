// The two Go clients of Eclipse Paho do what lines of words on standard input say: driver.py has the words.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const wait = 60 * time.Second

type client interface {
	subscribe(filter string, qos byte) (byte, error)
	publish(topic string, qos byte, retain bool, bodies []string) error
	disconnect() error
}

var (
	clients = map[string]client{}
	output  sync.Mutex
)

func say(words ...string) {
	output.Lock()
	defer output.Unlock()
	fmt.Println(strings.Join(words, " "))
}

func arrived(name, topic string, qos byte, retained bool, payload []byte) {
	body, retain := string(payload), "0"
	if body == "" {
		body = "-"
	}
	if retained {
		retain = "1"
	}
	say("message", name, topic, strconv.Itoa(int(qos)), retain, body)
}

func do(words []string) (string, error) {
	word, name, given := words[0], words[1], words[2:]
	switch word {
	case "connect":
		url, version, id, clean, will := given[0], given[1], given[2], given[3] == "1", given[4]
		var made client
		var present bool
		var err error
		if version == "5" {
			made, present, err = connect5(name, url, id, clean, will)
		} else {
			level, _ := strconv.Atoi(version)
			made, present, err = connect3(name, url, uint(level), id, clean, will)
		}
		if err != nil {
			return "", err
		}
		clients[name] = made
		if present {
			return "1", nil
		}
		return "0", nil
	case "subscribe":
		qos, _ := strconv.Atoi(given[1])
		granted, err := clients[name].subscribe(given[0], byte(qos))
		return strconv.Itoa(int(granted)), err
	case "publish":
		qos, _ := strconv.Atoi(given[1])
		count, _ := strconv.Atoi(given[3])
		bodies := make([]string, count)
		for i := range bodies {
			if given[4] != "-" {
				bodies[i] = fmt.Sprintf("%s.%d", given[4], i)
			}
		}
		return "", clients[name].publish(given[0], byte(qos), given[2] == "1", bodies)
	case "disconnect":
		return "", clients[name].disconnect()
	}
	return "", fmt.Errorf("no such word: %s", word)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		said, err := do(strings.Split(lines.Text(), " "))
		if err != nil {
			say("failed", err.Error())
		} else {
			say("ok", said)
		}
	}
}
