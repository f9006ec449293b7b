// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
)

// A late is an EC2 that interrupts the program during one call. It carries this call out later, after the program has
// looked for objects to delete.
type late struct {
	ec2    http.Handler
	signal syscall.Signal
	at     int // the number of the call; only changing calls count
	looks  int // the number of looks of the program before EC2 carries the call out

	mu      sync.Mutex
	program *process
	calls   int
	held    *http.Request
	action  string // the action of the call
}

// ServeHTTP answers a call to EC2.
func (l *late) ServeHTTP(a http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return // the program has exited
	}
	q = q.WithContext(context.WithoutCancel(q.Context()))
	q.Body = io.NopCloser(bytes.NewReader(body))
	action, _, _ := strings.Cut(strings.TrimPrefix(string(body), "Action="), "&")
	if l.hold(action, q) {
		<-l.program.done // the program gets no answer
		return
	}
	l.ec2.ServeHTTP(a, q)
	if action == "DescribeKeyPairs" { // DescribeKeyPairs is the last call of a look
		l.looked()
	}
}

// hold sends the signal to the program at the right call, and keeps the call. It reports whether it has kept the call.
func (l *late) hold(action string, q *http.Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !api.Changes(action) || l.action != "" {
		return false
	}
	if l.calls++; l.calls != l.at {
		return false
	}
	l.action = action
	_ = l.program.Process.Signal(l.signal)
	if slices.Contains([]string{"TerminateInstances", "DeleteKeyPair", "DeleteSecurityGroup"}, action) {
		return false // the signal does not stop deletions of the program
	}
	l.held = q
	return true
}

// looked counts the looks of the program. After the look for which the call waits, looked carries the call out. Only
// then, the program gets the answer to its look.
func (l *late) looked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		return
	}
	if l.looks--; l.looks == 0 {
		l.ec2.ServeHTTP(httptest.NewRecorder(), l.held)
		l.held = nil
	}
}

// TestInterruptedAnywhere interrupts many runs. Each run is interrupted at another changing call. EC2 carries the call
// out after the program has looked once or twice for objects to delete. In the end, no object may remain.
func TestInterruptedAnywhere(t *testing.T) {
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	seen := map[string]bool{}
	for at, over := 1, false; !over; at++ {
		afters := []int{1, 2}
		if at > 4 { // changing calls of the comparison
			afters = []int{1 + at%2}
		}
		if at > 8 {
			at += 4 // EC2 refuses most of these calls, or they are dry runs
		}
		for _, after := range afters {
			t.Run(fmt.Sprintf("call %d, after look %d", at, after), func(t *testing.T) {
				l := &late{signal: signals[(at+after)%len(signals)], at: at, looks: after}
				l.mu.Lock() // locked until l.program is set
				w := newWorld(t, account, func(ec2 http.Handler) http.Handler { l.ec2 = ec2; return l }, reachable(t))
				w.keys()
				l.program = w.start(t, "-yes", "-only", "compare")
				l.mu.Unlock()
				status, printed := l.program.end(t)
				seen[l.action] = true
				over = status == 0 // no call was left to interrupt, or the test was already over
				if !over && (status != exitFailed || l.held != nil || !strings.Contains(printed, "interrupted")) {
					t.Errorf("%s: %d, carried out: %v: %s", l.action, status, l.held == nil, printed)
				}
				w.nothingRemains(t)
			})
		}
	}
	for _, action := range []string{"ImportKeyPair", "CreateSecurityGroup", "AuthorizeSecurityGroupIngress",
		"RunInstances", "CreateNetworkInterface"} {
		if !seen[action] {
			t.Errorf("no run was interrupted at %s", action)
		}
	}
}
