// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
)

// TestStatusOfSlowNode: STATUS fails only for lasting faults, not for a busy or slow node.
func TestStatusOfSlowNode(t *testing.T) {
	never := make(chan struct{})
	for _, tt := range []struct {
		name string
		f    func(context.Context) error
		code uint
	}{
		{"never ends", func(context.Context) error { <-never; return nil }, 0},
		{"its time ends", func(ctx context.Context) error {
			<-ctx.Done()
			return fmt.Errorf("lock: %w", context.Cause(ctx))
		}, 0},
		{"short of buffers", func(context.Context) error {
			return Errorf(CodeNotAvailable, "", "tables: %w", syscall.ENOBUFS)
		}, 0},
		{"try again", func(context.Context) error { return Errorf(CodeTryAgain, "", "busy") }, 0},
		{"a fact", func(context.Context) error { return Errorf(CodeNotAvailable, "", "no ipvlan") }, CodeNotAvailable},
		{"read-only", func(context.Context) error { return Errorf(CodeNotAvailable, "", "write: %w", syscall.EROFS) },
			CodeNotAvailable},
		{"a plain error", func(context.Context) error { return errors.New("plain") }, 999},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				never = make(chan struct{})
				e := execution[anyConfig]{}
				answer := e.commandFunc(statusDeadline, func(ctx context.Context, _ *Request[anyConfig]) error {
					return tt.f(ctx)
				})
				got := answer(&call{verb: "STATUS", stdin: []byte(`{"cniVersion":"1.1.0","name":"net"}`),
					network: network{CNIVersion: "1.1.0", Name: "net"}})
				close(never)
				if tt.code == 0 && got != nil || tt.code > 0 && (got == nil || got.Code != tt.code) {
					t.Errorf("%+v, want code %d", got, tt.code)
				}
			})
		})
	}
}

type anyConfig struct{}
