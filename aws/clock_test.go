// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// retryModes are values of an environment variable that earlier releases of the SDK read. The Client ignores the
// variable.
var retryModes = []string{"", "true", "false"}

// TestWrongClock: the machine's clock is wrong. EC2 refuses the first attempt, but its answer has the right time, so
// the second attempt succeeds. Later calls of the process need no second attempt.
func TestWrongClock(t *testing.T) {
	calls := map[string]func(context.Context, *aws.Client, string) error{
		"AssignPrivateIpAddresses": func(ctx context.Context, c *aws.Client, eni string) error {
			return drop(c.Assign(ctx, eni, 1))
		},
		"CreateNetworkInterface": func(ctx context.Context, c *aws.Client, _ string) error {
			return drop(c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-b"}))
		},
		"DescribeNetworkInterfaces": func(ctx context.Context, c *aws.Client, eni string) error {
			return drop(c.DescribeENIs(ctx, aws.ByID(eni)))
		},
	}
	for _, code := range []string{"RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed", "AuthFailure",
		"SignatureDoesNotMatch", "InvalidSignatureException"} {
		for action, do := range calls {
			for _, ahead := range []time.Duration{time.Hour, -time.Hour, 6 * time.Minute} {
				for _, mode := range retryModes {
					t.Setenv("AWS_NEW_RETRIES_2026", mode)
					inBubble(t, fmt.Sprintf("%s %s %v %s", code, action, ahead, mode), func(t *testing.T) {
						sim, node, c := world(t, "m5.large")
						must(c.Instance(t.Context()))(t)
						sim.SetClock(ahead, code)
						began := time.Now()
						for range 2 {
							if err := do(t.Context(), c, node.ENIs()[0].ID); err != nil {
								t.Fatal(err)
							}
						}
						if all := sim.Calls(); len(all) != 3 || all[0].Code != code || all[1].Code != "" ||
							all[2].Code != "" {
							t.Errorf("calls: %v", all)
						}
						if d := time.Since(began); d > 0 {
							t.Errorf("the second attempt came after %v, and there is nothing to wait for", d)
						}
					})
				}
			}
		}
	}
}

// TestNoClock: the Client must not mistake wrong credentials for a wrong clock. If EC2 refuses each attempt with
// RequestExpired, the Client makes two attempts, and no third one.
func TestNoClock(t *testing.T) {
	for code, want := range map[string]int{"AuthFailure": 1, "SignatureDoesNotMatch": 1, "RequestExpired": 2} {
		inBubble(t, code, func(t *testing.T) {
			asked := 0
			c := client(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked++
				w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
				refuse(w, 400, code, "")
			}), tree{})
			if err := drop(c.Assign(t.Context(), "eni-1", 1)); !errors.Is(err, aws.ErrDenied) || !aws.Undone(err) ||
				asked != want {
				t.Errorf("%d attempts, want %d: %v", asked, want, err)
			}
		})
	}
}

// TestRetryAfter: EC2 may say when to ask again. If this time is after the caller's deadline, the Client returns EC2's
// error at once.
func TestRetryAfter(t *testing.T) {
	for name, tt := range map[string]struct {
		header   string
		deadline time.Duration
		calls    int
		least    time.Duration
		is       error
	}{
		"in time":      {"3000", 9 * time.Second, 2, 3 * time.Second, nil},
		"too late":     {"3000", 2 * time.Second, 1, 0, aws.ErrThrottled},
		"far too late": {"9000000000000", 4 * time.Second, 1, 0, aws.ErrThrottled},
		"nonsense":     {"soon", 2 * time.Second, 2, 0, nil},
	} {
		for _, mode := range retryModes {
			t.Setenv("AWS_NEW_RETRIES_2026", mode)
			inBubble(t, name+" "+mode, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
				defer cancel()
				busy := func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("X-Amz-Retry-After", tt.header)
					throttle(w, r)
				}
				ec2, began := &clerk{failures: []http.HandlerFunc{busy}}, time.Now()
				c := aws.New(aws.Options{EC2URL: "http://ec2.test", HTTP: ec2sim.Direct{Handler: ec2},
					Jitter: func(time.Duration) time.Duration { return 0 }})
				err := drop(c.Assign(ctx, "eni-1", 1))
				if d := time.Since(began); !errors.Is(err, tt.is) || ec2.calls != tt.calls || d < tt.least ||
					tt.is != nil && d > 0 {
					t.Errorf("%d calls in %v: %v", ec2.calls, d, err)
				}
			})
		}
	}
}
