// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

// An Outcome says what happens to one HTTP request. The zero Outcome means that EC2 carries out the request and answers
// it.
type Outcome struct {
	Undone bool   // EC2 does not carry out the request
	Lost   bool   // EC2 closes the connection without an answer
	Code   string // the answer is this error, also if EC2 carries out the request; Undone without a Code is Lost
}

// The outcomes that a caller must handle, in addition to the outcomes of Refused and DoneBut.
var (
	Answered   = Outcome{}
	DoneLost   = Outcome{Lost: true}
	UndoneLost = Outcome{Undone: true, Lost: true}
)

// Refused is a request that EC2 does not carry out, and answers with an error.
func Refused(code string) Outcome { return Outcome{Undone: true, Code: code} }

// DoneBut is a request that EC2 carries out and answers with an error, as after a fault of the server.
func DoneBut(code string) Outcome { return Outcome{Code: code} }

// Script says what happens to the next HTTP requests of the action, one by one. Each attempt of the SDK is a request. A
// new script replaces the rest of an earlier script. A call without outcomes ends the script. After the script, Fail,
// Lose and the buckets apply again.
func (s *Sim) Script(action string, outcomes ...Outcome) {
	mustHaveAction(action)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[action] = outcomes
}

// playScript dispatches a request as its script says, and reports whether to lose the answer.
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
