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

// A probe makes a step again with its recorded answers, to find out which fields the suite's client reads.
type probe struct {
	step  step
	side  *side
	whole *outcome // the outcome with the unchanged answers
}

func newProbe(s step, on *side) *probe { return &probe{step: s, side: on} }

// reads reports whether the client's result depends on a field of the answer to a call.
func (p *probe) reads(call, field string) bool {
	a, ok := p.side.heard[call]
	if !ok {
		return false
	}
	if field == statusField {
		return true
	}
	less, ok := a.without(call, field)
	if !ok {
		return false
	}
	if p.whole == nil {
		p.whole = new(p.play(p.side.heard))
	}
	answers := maps.Clone(p.side.heard)
	answers[call] = less
	return !reflect.DeepEqual(*p.whole, p.play(answers))
}

// playURL is the URL of the player.
const playURL = "http://play.invalid"

// play makes the step with recorded answers.
func (p *probe) play(answers map[string]answer) outcome {
	const most = 500 // requests of one step: ENIs asks for sixteen keys of each ENI
	c := aws.New(aws.Options{EC2URL: playURL, MetadataURL: playURL, HTTP: &player{answers: answers, left: most},
		Attempts: 1})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return outcomeOf(p.step.do(ctx, p.side, c))
}

// without returns the answer without a field, and whether it had the field.
func (a answer) without(call, field string) (answer, bool) {
	switch {
	case !strings.HasPrefix(call, "/"):
		root, err := parse(a.body)
		if err != nil {
			return a, false
		}
		before := string(root.document())
		root.without(field)
		after := root.document()
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

// A router sends requests for metadata to one client, and all others to another.
type router struct{ ec2, metadata aws.HTTPClient }

// Do makes a request.
func (r router) Do(q *http.Request) (*http.Response, error) {
	if strings.HasPrefix(q.URL.Path, "/latest/") {
		return r.metadata.Do(q)
	}
	return r.ec2.Do(q)
}
