// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package compare

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

const tokenPath = "/latest/api/token"

// An answer is the HTTP status and the body of a response.
type answer struct {
	status int
	body   []byte
}

// A recorder records the last answer to each call. A call is the action of a request to EC2, or the path of a request
// to metadata. Goroutines may share a recorder.
type recorder struct {
	aws.HTTPClient
	mu      sync.Mutex
	answers map[string]answer
}

// takeAnswers returns the recorded answers, and removes them from the recorder.
func (r *recorder) takeAnswers() map[string]answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	heard := r.answers
	r.answers = nil
	return heard
}

// Do makes a request, and records the answer unless the answer is a session token of metadata.
func (r *recorder) Do(q *http.Request) (*http.Response, error) {
	call, err := callOf(q)
	if err != nil {
		return nil, err
	}
	a, err := r.HTTPClient.Do(q)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(a.Body)
	a.Body.Close()
	if err != nil {
		return nil, err
	}
	a.Body = io.NopCloser(bytes.NewReader(body))
	if call != tokenPath {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.answers == nil {
			r.answers = map[string]answer{}
		}
		r.answers[call] = answer{a.StatusCode, body}
	}
	return a, nil
}

// callOf returns the action of a request to EC2, or the path of a request to metadata. The caller can still read the
// body of the request.
func callOf(q *http.Request) (string, error) {
	if strings.HasPrefix(q.URL.Path, "/latest/") {
		return q.URL.Path, nil
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return "", err
	}
	q.Body = io.NopCloser(bytes.NewReader(body))
	form, err := url.ParseQuery(string(body))
	return form.Get("Action"), err
}

// A player answers requests with recorded answers. If there is no recorded answer, the status is 404. After a limited
// number of requests, all further requests fail, so that no client sends requests for ever.
type player struct {
	answers map[string]answer
	left    int // how many more requests the player answers
	mu      sync.Mutex
}

// Do answers a request with a recorded answer.
func (p *player) Do(q *http.Request) (*http.Response, error) {
	p.mu.Lock()
	p.left--
	left := p.left
	p.mu.Unlock()
	call, err := callOf(q)
	if err == nil && left < 0 {
		err = fmt.Errorf("%s: too many requests in one step", call)
	}
	if err != nil {
		return nil, err
	}
	a, ok := p.answers[call]
	header := http.Header{}
	switch {
	case call == tokenPath:
		header.Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		a = answer{http.StatusOK, []byte("token")}
	case !ok:
		a = answer{status: http.StatusNotFound}
	}
	return &http.Response{StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Request: q,
		ContentLength: int64(len(a.body)), Body: io.NopCloser(bytes.NewReader(a.body))}, nil
}
