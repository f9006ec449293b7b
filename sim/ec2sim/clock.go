// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"net/http"
	"time"
)

// A clock describes how EC2's clock differs from the machine's clock.
type clock struct {
	ahead time.Duration // how far EC2's clock is ahead; negative if it is behind
	code  string        // the error for a request whose time is wrong; empty: EC2 accepts all times
}

// maxSkew is how much the time of a request may differ from EC2's time (IAM user guide, "Elements of an AWS API request
// signature": "within 5 minutes").
const maxSkew = 5 * time.Minute

// SetClock sets EC2's clock ahead of the machine's clock, or behind the machine's clock if ahead is negative. EC2 then
// refuses each request whose signature has a time that is wrong by more than five minutes. The argument "code" is the
// code of the error. The Date header of each answer has EC2's time. If "code" is empty, EC2 uses the machine's clock,
// and accepts all times.
func (s *Sim) SetClock(ahead time.Duration, code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = clock{ahead, code}
}

// checkTime writes EC2's time to the Date header of the answer, and refuses a request whose time is wrong.
func (s *Sim) checkTime(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clock.code == "" {
		return nil
	}
	now := time.Now().Add(s.clock.ahead).UTC()
	w.Header().Set("Date", now.Format(http.TimeFormat))
	signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err == nil && now.Sub(signed).Abs() <= maxSkew {
		return nil
	}
	f := form{"Action": r.Form.Get("Action")}
	err = refuse(s.clock.code, "Request has expired or its signature is not valid: its time is %s, and it is %s",
		signed, now)
	s.recordCall(f, err, false)
	return err
}
