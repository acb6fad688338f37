// Package harness runs the scenarios of one client library; see ../program.py for what it prints.
package harness

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"
)

// Limit is how long anything may take that is waited for.
const Limit = 60 * time.Second

var (
	// URL is where the server is.
	URL   = os.Args[1]
	input = bufio.NewScanner(os.Stdin)
	count = 0
)

// Scenario is one thing that applications do with the library.
type Scenario struct {
	Name string
	Run  func() error
}

// Run does all of them and says of each what came of it.
func Run(scenarios []Scenario) {
	for _, each := range scenarios {
		result := "ok"
		if err := each.Run(); err != nil {
			result = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println("RESULT", each.Name, result)
	}
	fmt.Println("END")
}

// Outside asks the test for something, and comes back when it is done.
func Outside(what string) {
	fmt.Println("DO", what)
	input.Scan()
}

// Unique makes a name that no other run has.
func Unique(library, name string) string {
	count++
	return fmt.Sprintf("%s-%s-%d-%d", library, name, os.Getpid(), count)
}

// Next waits for what comes over the channel.
func Next[T any](messages <-chan T) (T, error) {
	var none T
	select {
	case one, open := <-messages:
		if !open {
			return none, fmt.Errorf("nobody sends over this channel any more")
		}
		return one, nil
	case <-time.After(Limit):
		return none, fmt.Errorf("nothing came in %v", Limit)
	}
}
