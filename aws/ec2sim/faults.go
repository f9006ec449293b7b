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
)

// A fault is what an action shall answer instead of the truth, for some calls.
type fault struct {
	refusal
	left int // negative: for ever
}

// Fail makes the next n calls of the action answer with the error code, and do nothing: RequestLimitExceeded is EC2
// throttling, UnauthorizedOperation a missing permission. A negative n means all calls from now on, 0 none any more. An
// action that the simulator does not know is a mistake of the caller, and panics.
func (s *Sim) Fail(action, code string, n int) {
	message := action + " answers so because the simulator was told to."
	switch code {
	case "RequestLimitExceeded":
		message = tooManyRequests
	case "UnauthorizedOperation":
		message = s.unauthorized(action)
	}
	s.FailAs(action, code, message, n)
}

// FailAs is Fail for the codes that EC2 uses for much, InvalidParameterValue above all, where the message makes the
// difference.
func (s *Sim) FailAs(action, code, message string, n int) {
	mustKnow(action)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[action] = &fault{refusal{code, message}, n}
}

// Delay makes each answer to the action take d longer from now on. The work is done before the wait: a caller that
// gives up has lost an answer, not a call, which is the harder case to be right about.
func (s *Sim) Delay(action string, d time.Duration) {
	mustKnow(action)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delays[action] = d
}

func mustKnow(action string) {
	if _, ok := actions[action]; !ok {
		panic(fmt.Sprintf("ec2sim: no action %q", action))
	}
}

// Lose makes the next n calls of the action that succeed do so without an answer: the work is done, the connection is
// closed, and the caller cannot know. A negative n means all calls from now on, 0 none any more. To a caller of ServeHTTP
// that is no server of net/http, a closed connection is a panic with [http.ErrAbortHandler].
func (s *Sim) Lose(action string, n int) {
	mustKnow(action)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.losses[action] = n
}

// loses says whether the answer of this call is to be lost.
func (s *Sim) loses(action string) bool {
	n := s.losses[action]
	if n > 0 {
		s.losses[action] = n - 1
	}
	return n != 0
}

// injected is the error that the action shall answer with, if any.
func (s *Sim) injected(called form) error {
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

// Calls returns the calls that EC2 has answered since the last ResetCalls, in order.
func (s *Sim) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// ResetCalls forgets the calls so far, of EC2 and of the metadata of all instances.
func (s *Sim) ResetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
	for _, i := range s.instances {
		i.forgetCalls()
	}
}

// record appends a call.
func (s *Sim) record(f form, err error, lost bool) {
	c := Call{Action: f["Action"], Params: maps.Clone(f), Lost: lost}
	delete(c.Params, "Action")
	delete(c.Params, "Version")
	if r, ok := errors.AsType[*refusal](err); ok {
		c.Code = r.code
	}
	s.calls = append(s.calls, c)
}

// String prints a call on one line, such as
//
//	AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=16: RequestLimitExceeded
//
// without the client token, which is different in every run.
func (c Call) String() string {
	words := []string{c.Action}
	for _, name := range slices.Sorted(maps.Keys(c.Params)) {
		if name != "ClientToken" {
			words = append(words, name+"="+c.Params[name])
		}
	}
	line := strings.Join(words, " ")
	switch {
	case c.Code != "":
		line += ": " + c.Code
	case c.Lost:
		line += ": answer lost"
	}
	return line
}
