// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

// An Outcome says what happens to one HTTP request. The zero Outcome means that EC2 answers as usual.
type Outcome struct {
	Undone bool   // EC2 does not carry out the request; if Code is empty, EC2 does not answer either
	Lost   bool   // EC2 closes the connection without an answer
	Code   string // the error code of the answer; Undone decides whether EC2 carries out the request
}

// The outcomes without an error code.
var (
	Answered   = Outcome{}
	DoneLost   = Outcome{Lost: true}
	UndoneLost = Outcome{Undone: true, Lost: true}
)

// Refused returns the outcome of a request that EC2 refuses with the error code.
func Refused(code string) Outcome { return Outcome{Undone: true, Code: code} }

// DoneBut returns the outcome of a request that EC2 carries out, although it answers with the error code. An internal
// fault of EC2 can cause this.
func DoneBut(code string) Outcome { return Outcome{Code: code} }

// Script sets the outcomes of the next HTTP requests of the action, in this order. Each attempt of the SDK is a
// request. A new script replaces the rest of an earlier script. A call of Script without outcomes ends the earlier
// script. [Sim.Lose] does not affect the requests of a script. A request whose outcome has Undone takes no token from
// the buckets. [Sim.Fail] does not count this request.
func (s *Sim) Script(action string, outcomes ...Outcome) {
	mustHaveAction(action)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[action] = outcomes
}

// playScript dispatches a request as the action's script says, and reports whether EC2 must lose the answer.
func (s *Sim) playScript(f form) (out output, lost bool, err error) {
	action := f["Action"]
	script := s.scripts[action]
	if len(script) == 0 {
		out, err = s.dispatch(f)
		return out, err == nil && s.losesAnswer(action), err
	}
	o := script[0]
	s.scripts[action] = script[1:]
	if !o.Undone {
		out, err = s.dispatch(f)
	}
	if err == nil && o.Code != "" {
		err = &refusal{o.Code, s.errorMessage(action, o.Code)}
	}
	return out, o.Lost || o.Undone && o.Code == "", err
}
