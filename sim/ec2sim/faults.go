// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
)

// A fault makes EC2 refuse calls of one action (see Fail).
type fault struct {
	refusal
	left int // how many calls still get this answer; negative: all calls
}

// Fail makes EC2 refuse the next n calls of the action with the error code. RequestLimitExceeded means that EC2
// throttles the caller, and UnauthorizedOperation means that the caller has no permission. If n is negative, EC2
// refuses all calls from now on. If n is 0, Fail ends an earlier fault. Fail panics if the action is unknown.
func (s *Sim) Fail(action, code string, n int) {
	s.FailAs(action, code, s.errorMessage(action, code), n)
}

// errorMessage returns EC2's message for the error code, or a message of the simulator if EC2's is not known.
func (s *Sim) errorMessage(action, code string) string {
	switch code {
	case "RequestLimitExceeded":
		return tooManyRequests
	case "UnauthorizedOperation":
		return s.unauthorizedMessage(action)
	}
	return action + " fails because a test has ordered it."
}

// FailAs is like Fail, but the caller also chooses the message. EC2 uses some codes with several messages, for example
// InvalidParameterValue.
func (s *Sim) FailAs(action, code, message string, n int) {
	mustHaveAction(action)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[action] = &fault{refusal{code, message}, n}
}

// RefuseOn makes EC2 refuse all calls of the action that concern one object. The object is the ENI or the subnet with
// this ID. EC2's error has this code and this message. A call concerns a subnet if it creates an ENI there, or attaches
// an ENI of the subnet. An empty code ends the refusals.
func (s *Sim) RefuseOn(object, action, code, message string) {
	mustHaveAction(action)
	s.mu.Lock()
	defer s.mu.Unlock()
	key := action + " " + object
	if delete(s.objects, key); code != "" {
		s.objects[key] = &refusal{code, message}
	}
}

func (s *Sim) objectRefusal(called form) error {
	id := called["NetworkInterfaceId"]
	about := []string{id, called["SubnetId"]}
	if e := s.enis[id]; e != nil && called["Action"] == "AttachNetworkInterface" {
		about = append(about, e.subnet.ID)
	}
	for _, object := range about {
		if r := s.objects[called["Action"]+" "+object]; object != "" && r != nil {
			return r
		}
	}
	return nil
}

// Delay makes EC2 wait for the duration d before each answer to the action. EC2 has then already carried out the call,
// even if the caller gives up.
func (s *Sim) Delay(action string, d time.Duration) {
	mustHaveAction(action)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delays[action] = d
}

// DetachSlowly replaces the DetachDelay of the configuration for the detachments that begin from now on.
func (s *Sim) DetachSlowly(delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.DetachDelay = delay
}

func mustHaveAction(action string) {
	if _, ok := actions[action]; !ok {
		panic(fmt.Sprintf("ec2sim: no action %q", action))
	}
}

// Lose makes EC2 lose its answers to the next n successful calls of the action. EC2 carries out such a call, and closes
// the connection without an answer. If n is negative, EC2 loses the answers to all calls from now on. If n is 0, EC2
// loses no answer. To close the connection, ServeHTTP panics with [http.ErrAbortHandler]. A server of net/http recovers
// this panic, but a caller that calls ServeHTTP directly must recover it.
func (s *Sim) Lose(action string, n int) {
	mustHaveAction(action)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.losses[action] = n
}

func (s *Sim) losesAnswer(action string) bool {
	n := s.losses[action]
	if n > 0 {
		s.losses[action] = n - 1
	}
	return n != 0
}

func (s *Sim) injectedFault(called form) error {
	action := called["Action"]
	f := s.faults[action]
	if f == nil || f.left == 0 {
		return nil
	}
	if f.left > 0 {
		f.left--
	}
	return &f.refusal
}

// Calls returns the calls that EC2 has got since the last ResetCalls, in order.
func (s *Sim) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Asked returns the number of calls of the action, since the last ResetCalls. It also counts calls that EC2 has refused
// or throttled.
func (s *Sim) Asked(action string) (n int) {
	for _, c := range s.Calls() {
		if c.Action == action {
			n++
		}
	}
	return n
}

// Changed returns, by action, how many of the recorded calls have changed something in EC2.
func (s *Sim) Changed() map[string]int {
	counts := map[string]int{}
	for _, c := range s.Calls() {
		if api.Changes(c.Action) && c.Code == "" {
			counts[c.Action]++
		}
	}
	return counts
}

// ResetCalls forgets all recorded calls to EC2, and all recorded requests to metadata services.
func (s *Sim) ResetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
	for _, i := range s.instances {
		i.forgetCalls()
	}
}

// recordCall adds a call to the record for [Sim.Calls].
func (s *Sim) recordCall(f form, err error, lost bool) {
	c := Call{Action: f["Action"], Params: maps.Clone(f), Lost: lost}
	delete(c.Params, "Action")
	delete(c.Params, "Version")
	if r, ok := errors.AsType[*refusal](err); ok {
		c.Code = r.code
	}
	s.calls = append(s.calls, c)
}

// String returns a call as one line, for example
//
//	AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=16: RequestLimitExceeded
//
// It omits the client token, because the token is different in every run.
func (c Call) String() string {
	words := []string{c.Action}
	for _, name := range slices.Sorted(maps.Keys(c.Params)) {
		if name != "ClientToken" {
			words = append(words, name+"="+c.Params[name])
		}
	}
	line := strings.Join(words, " ")
	if c.Code != "" {
		line += ": " + c.Code
	}
	if c.Lost {
		line += ": answer lost"
	}
	return line
}
