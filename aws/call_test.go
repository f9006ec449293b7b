// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// A clerk is an EC2. It answers the first calls with the failures, one failure for each call. To all later calls, it
// answers that they are carried out.
type clerk struct {
	failures []http.HandlerFunc
	calls    int
}

func (c *clerk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.calls++
	if len(c.failures) > 0 {
		f := c.failures[0]
		c.failures = c.failures[1:]
		f(w, r)
		return
	}
	r.ParseForm()
	answer(w, r.Form.Get("Action"), assigned)
}

func throttle(w http.ResponseWriter, _ *http.Request) {
	refuse(w, 503, "RequestLimitExceeded", "Request limit exceeded.")
}

func fault(w http.ResponseWriter, _ *http.Request) {
	refuse(w, 500, "InternalError", "An internal error has occurred")
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// slow refuses a call after two seconds.
func slow(w http.ResponseWriter, r *http.Request) {
	select {
	case <-time.After(2 * time.Second):
		throttle(w, r)
	case <-r.Context().Done():
	}
}

// TestRetry counts the attempts of Assign, which has no client token, and of DetachENI, which is harmless to repeat.
func TestRetry(t *testing.T) {
	assign := func(ctx context.Context, c *aws.Client) error {
		_, err := c.Assign(ctx, "eni-1", 1)
		return err
	}
	detach := func(ctx context.Context, c *aws.Client) error { return c.DetachENI(ctx, "eni-attach-1") }
	describe := func(ctx context.Context, c *aws.Client) error {
		_, err := c.DescribeENIs(ctx, aws.ByID("eni-1"))
		return err
	}
	type failures = []http.HandlerFunc
	tests := []struct {
		name     string
		call     func(context.Context, *aws.Client) error
		failures failures
		attempts int // maximum number of attempts; 0: the default
		deadline time.Duration
		calls    int // number of attempts that the Client makes
		atMost   time.Duration
		is       error
	}{
		{name: "no failure", call: assign, calls: 1},
		{name: "throttled once", call: assign, failures: failures{throttle}, calls: 2, atMost: time.Second},
		{name: "throttled on and on", call: assign, failures: failures{throttle, throttle, throttle}, calls: 2,
			atMost: time.Second, is: aws.ErrThrottled},
		{name: "no patience at all", call: assign, failures: failures{throttle}, attempts: 1, calls: 1,
			is: aws.ErrThrottled},
		{name: "much patience", call: assign, failures: failures{throttle, throttle, throttle}, attempts: 9, calls: 4,
			atMost: 7 * time.Second},
		{name: "throttled with no time left", call: assign, failures: failures{throttle}, deadline: time.Nanosecond,
			calls: 1, is: aws.ErrThrottled},
		{name: "a fault may have done it", call: assign, failures: failures{fault}, calls: 1, is: aws.ErrTransient},
		{name: "a fault that does no harm", call: detach, failures: failures{fault}, calls: 2, atMost: time.Second},
		{name: "faults on and on", call: detach, failures: failures{fault, fault}, calls: 2, atMost: time.Second,
			is: aws.ErrTransient},
		{name: "no answer", call: detach, failures: failures{hang}, calls: 1, atMost: 10 * time.Second,
			is: context.DeadlineExceeded},
		{name: "no answer before the deadline", call: detach, failures: failures{hang}, deadline: time.Second, calls: 1,
			atMost: 4 * time.Second, is: context.DeadlineExceeded},
		{name: "an answer soon after the deadline", call: assign, failures: failures{slow}, deadline: time.Second,
			calls: 1, atMost: 2 * time.Second, is: aws.ErrThrottled},
		{name: "no answer to a question before the deadline", call: describe, failures: failures{hang},
			deadline: time.Second, calls: 1, atMost: time.Second, is: context.DeadlineExceeded},
	}
	for n := range len(tests) * len(retryModes) {
		tt, mode := tests[n%len(tests)], retryModes[n/len(tests)]
		t.Setenv("AWS_NEW_RETRIES_2026", mode)
		inBubble(t, tt.name+" "+mode, func(t *testing.T) {
			ctx, ec2 := t.Context(), &clerk{failures: tt.failures}
			if tt.deadline > 0 {
				var cancel func()
				ctx, cancel = context.WithTimeout(ctx, tt.deadline)
				defer cancel()
			}
			c := aws.New(aws.Options{EC2URL: "http://ec2.test", HTTP: ec2sim.Direct{Handler: ec2},
				Attempts: tt.attempts})
			start := time.Now()
			err := tt.call(ctx, c)
			if !errors.Is(err, tt.is) {
				t.Errorf("error %v, want %v", err, tt.is)
			}
			if d := time.Since(start); ec2.calls != tt.calls || d > tt.atMost {
				t.Errorf("%d calls in %v, want %d in at most %v", ec2.calls, d, tt.calls, tt.atMost)
			}
		})
	}
}

// TestTimeoutText checks that the error distinguishes the timeout for EC2's answer from the deadline of the caller.
func TestTimeoutText(t *testing.T) {
	inBubble(t, "EC2", func(t *testing.T) {
		err := client(&clerk{failures: []http.HandlerFunc{hang}}, tree{}).DeleteENI(t.Context(), "eni-1")
		const want = "DeleteNetworkInterface: no answer from EC2 in 10s: context deadline exceeded"
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
	inBubble(t, "caller", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("addTimeout has passed"))
		defer cancel()
		err := client(&clerk{failures: []http.HandlerFunc{hang}}, tree{}).DeleteENI(ctx, "eni-1")
		const want = "DeleteNetworkInterface: context deadline exceeded: addTimeout has passed"
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

// TestLog checks that each change in EC2 is logged once, with its request ID. A failed call returns an error, and is
// not logged.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		noTime := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: noTime})))
		defer slog.SetDefault(before)

		c := client(&clerk{}, tree{})
		if _, err := c.Assign(t.Context(), "eni-1", 1); err != nil {
			t.Fatal(err)
		}
		if _, err := c.DescribeENIs(t.Context()); err != nil {
			t.Fatal(err)
		}
		refused := client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			refuse(w, 400, "IncorrectState", "")
		}), tree{})
		if err := refused.DeleteENI(t.Context(), "eni-1"); err == nil {
			t.Fatal("no error")
		}
		const want = "level=INFO msg=AssignPrivateIpAddresses eni=eni-1 addrs=10.0.0.9 request=req-1\n"
		if log.String() != want {
			t.Errorf("got %q, want %q", log.String(), want)
		}
	})
}

func TestUserAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var agent string
		c := client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			agent = r.UserAgent()
			answer(w, "DetachNetworkInterface", "")
		}), tree{})
		if err := c.DetachENI(t.Context(), "eni-attach-1"); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(agent, " cni-ipvlan-vpc-k8s/") {
			t.Errorf("user agent %q, want this suite in it", agent)
		}
	})
}
