// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// A process is one run of the plugin or of the tool. It reaches EC2 and metadata without a socket. At one of its calls
// to EC2 or to metadata, its fate may happen to it.
type process struct {
	*model
	cancel context.CancelFunc
	fate   fate

	mu    sync.Mutex // a growth makes several calls at once
	calls [2]int     // calls to EC2 and to metadata so far
	ended string     // how the process was ended; empty: it was not
}

// A fate is what happens to a process at one of its calls to EC2 or to metadata.
type fate struct {
	of    service
	at    int    // the call to this service, counted from 1; 0: nothing happens
	after bool   // the fate happens when EC2 has carried out the call; false: before the call
	end   string // "killed", "cancelled" or empty
	meet  func() // what other processes do meanwhile
}

// A service is EC2, or the node's metadata service.
type service int

const (
	theEC2 service = iota
	metadata
)

func (s service) String() string { return [...]string{"EC2", "metadata"}[s] }

func (f fate) String() string {
	if f.at == 0 {
		return ""
	}
	when := "before"
	if f.after {
		when = "after"
	}
	if f.meet != nil {
		return fmt.Sprintf(" (others act %s call %d to %v)", when, f.at, f.of)
	}
	return fmt.Sprintf(" (%s %s call %d to %v)", f.end, when, f.at, f.of)
}

// run calls do as a process with the fate f, until the process ends or is killed.
func (m *model) run(
	policy lease.Policy, f fate, timeout time.Duration, do func(context.Context, *Pool) error,
) (err error) {
	ctx, cancel := context.WithTimeout(m.Context(), timeout)
	defer cancel()
	p := &process{model: m, cancel: cancel, fate: f}
	pool := p.pool(policy)
	done := make(chan struct{})
	err = errors.New("killed")
	go func() {
		defer close(done)
		err = do(ctx, pool)
	}()
	<-done
	m.sent = p.calls[theEC2] + p.calls[metadata]
	if p.ended != "" {
		m.logf("  %s at %s", p.ended, m.clock())
	}
	return err
}

// pool returns the node's pool, as the process opens it.
func (p *process) pool(policy lease.Policy) *Pool {
	r, err := registry.Open(p.Dir)
	must(p, err)
	cloud := aws.New(aws.Options{EC2URL: "http://ec2", MetadataURL: "http://imds", HTTP: p})
	host := p.kernel.host
	if p.atOnce { // a process has a handle of its own
		host, err = nl.Open("model-node", p.kernel.node)
		must(p, err)
		p.Cleanup(func() { host.Close() })
	}
	return New(lease.Pool{Registry: r, Host: host, Policy: policy, Shelves: []lease.Shelf{{Dir: p.kernel.dir}}}, cloud)
}

// Do passes a request to metadata or EC2. If this is the call of the process's fate, the fate happens before or after
// it.
func (p *process) Do(r *http.Request) (*http.Response, error) {
	to, send, name := metadata, p.askMetadata, r.URL.Path
	if r.URL.Host != "imds" {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		form, _ := url.ParseQuery(string(body))
		r.Body = io.NopCloser(bytes.NewReader(body))
		to, send, name = theEC2, p.askEC2, form.Get("Action")
	}
	f, now := p.fate, p.count(to) == p.fate.at && to == p.fate.of
	if now && !f.after {
		if err := p.meet(name); err != nil {
			return nil, err
		}
	}
	if err := r.Context().Err(); err != nil {
		return nil, err // other processes have acted until the time of p was over
	}
	resp, err := send(r)
	if now && f.after {
		if err := p.meet(name); err != nil {
			return nil, err
		}
	}
	return resp, err
}

func (p *process) askMetadata(r *http.Request) (*http.Response, error) {
	const patience = 500 * time.Millisecond // less than aws.directHTTP waits
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	return ec2sim.Direct{Handler: p.Instance.Metadata()}.Do(r.WithContext(ctx))
}

func (p *process) askEC2(r *http.Request) (*http.Response, error) {
	if p.cut {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refused++
		return nil, errors.New("no route to host")
	}
	return ec2sim.Direct{Handler: p.EC2}.Do(r)
}

// count counts a call to a service. A killed process makes no further call.
func (p *process) count(to service) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if strings.HasPrefix(p.ended, "killed") {
		runtime.Goexit()
	}
	p.calls[to]++
	return p.calls[to]
}

func (p *process) end(how string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = how
}

// meet lets the fate of the process happen.
func (p *process) meet(action string) error {
	switch {
	case p.fate.meet != nil:
		p.depth++
		p.logf("meanwhile, at %s:", action)
		p.fate.meet()
		p.depth--
	case p.fate.end == "killed":
		p.end("killed at " + action)
		runtime.Goexit() // only releases the locks, as the kernel does
	case p.fate.end == "cancelled":
		p.end("cancelled at " + action)
		p.cancel()
		return context.Canceled
	}
	return nil
}

func (m *model) logf(format string, args ...any) {
	m.log = append(m.log, strings.Repeat("    ", m.depth)+fmt.Sprintf(format, args...))
}

// clock returns the time since the history began.
func (m *model) clock() string { return time.Since(m.began).Round(time.Millisecond).String() }
