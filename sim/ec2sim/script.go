// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

// An Outcome says what happens to one HTTP request. The zero Outcome means that EC2 carries out the request and answers
// it.
type Outcome struct {
	Undone bool   // EC2 does not carry out the request; without a Code, the outcome is also Lost
	Lost   bool   // EC2 closes the connection without an answer
	Code   string // EC2 answers with this error code, even after it has carried out the request
}

// The outcomes that a caller must handle, in addition to those that Refused and DoneBut return.
var (
	Answered   = Outcome{}
	DoneLost   = Outcome{Lost: true}
	UndoneLost = Outcome{Undone: true, Lost: true}
)

// Refused returns the outcome of a request that EC2 refuses. EC2 does not carry out the request, and answers with the
// error code.
func Refused(code string) Outcome { return Outcome{Undone: true, Code: code} }

// DoneBut returns the outcome of a request that EC2 carries out, but answers with the error code. EC2 can do so after
// an internal fault.
func DoneBut(code string) Outcome { return Outcome{Code: code} }

// Script says what happens to the next HTTP requests of the action, one by one. Each attempt of the SDK is a request. A
// new script replaces the rest of an earlier script. To end a script, call Script without outcomes. Lose does not
// affect the requests of a script. Fail and the token buckets affect only those requests of a script whose outcome is
// not Undone.
func (s *Sim) Script(action string, outcomes ...Outcome) {
	mustHaveAction(action)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[action] = outcomes
}

// playScript dispatches a request as its script says, and reports whether the answer must be lost.
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
