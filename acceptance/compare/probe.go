// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package compare

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// A probe repeats a step with recorded answers, to find out which fields the suite's client reads.
type probe struct {
	step         step
	side         *side
	wholeOutcome *outcome // the outcome with the unchanged answers
}

func newProbe(s step, on *side) *probe { return &probe{step: s, side: on} }

// isRead reports whether the suite's client reads a field in the answer to a call. The client reads a field if the
// client's result is different without the field.
func (p *probe) isRead(call, field string) bool {
	a, ok := p.side.answers[call]
	if !ok {
		return false
	}
	if field == statusField {
		return true
	}
	less, ok := a.withoutField(call, field)
	if !ok {
		return false
	}
	if p.wholeOutcome == nil {
		p.wholeOutcome = new(p.replay(p.side.answers))
	}
	answers := maps.Clone(p.side.answers)
	answers[call] = less
	return !reflect.DeepEqual(*p.wholeOutcome, p.replay(answers))
}

// playURL is the URL to which a probe sends its requests. The type player answers these requests.
const playURL = "http://play.invalid"

// replay runs the step with recorded answers, and returns the outcome.
func (p *probe) replay(answers map[string]answer) outcome {
	// aws.Client.ENIs asks metadata for sixteen keys of each ENI, with one request for each key.
	const most = 500 // requests of one step
	c := aws.New(aws.Options{EC2URL: playURL, MetadataURL: playURL, HTTP: &player{answers: answers, left: most},
		Attempts: 1})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return outcomeOf(p.step.do(ctx, p.side, c))
}

// withoutField returns the answer without a field, and reports whether the answer had the field.
func (a answer) withoutField(call, field string) (answer, bool) {
	switch {
	case !strings.HasPrefix(call, "/"):
		root, err := parseXML(a.body)
		if err != nil {
			return a, false
		}
		before := string(root.xmlText())
		root.deletePath(field)
		after := root.xmlText()
		return answer{a.status, after}, string(after) != before
	case a.status != http.StatusOK:
		return a, false
	case strings.Contains(call, "/dynamic/"):
		var all map[string]json.RawMessage
		if err := json.Unmarshal(a.body, &all); err != nil {
			return a, false
		}
		_, had := all[field]
		delete(all, field)
		body, err := json.Marshal(all)
		return answer{a.status, body}, had && err == nil
	}
	return answer{status: http.StatusNotFound}, true
}

type router struct{ ec2, metadata aws.HTTPClient }

// Do makes a request.
func (r router) Do(q *http.Request) (*http.Response, error) {
	if strings.HasPrefix(q.URL.Path, "/latest/") {
		return r.metadata.Do(q)
	}
	return r.ec2.Do(q)
}
