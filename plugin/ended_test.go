// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// TestEnded: Commands.Ended gets the outcome of each command, even if the configuration is wrong, or if the command
// panics.
func TestEnded(t *testing.T) {
	const delay = 5 * time.Millisecond
	var verb string
	var took time.Duration
	var waited bool
	var fault *types.Error
	commands := Commands[struct{}]{
		Add: func(_ context.Context, r *Request[struct{}]) (*types100.Result, error) {
			time.Sleep(delay)
			switch r.ContainerID {
			case "panics":
				panic("on purpose")
			case "fails":
				return nil, Errorf(CodeTryAgain, "", "later")
			}
			r.Waited = r.ContainerID == "waits"
			return &types100.Result{}, nil
		},
		Ended: func(v string, d time.Duration, w bool, err *types.Error) { verb, took, waited, fault = v, d, w, err },
	}
	const conf = `{"cniVersion":"1.1.0","name":"n","type":"t"`
	for _, c := range []struct {
		verb, container, stdin string
		waited                 bool
		code                   uint
	}{
		{"ADD", "good", conf + "}", false, 0},
		{"ADD", "waits", conf + "}", true, 0},
		{"ADD", "fails", conf + "}", false, CodeTryAgain},
		{"ADD", "panics", conf + "}", false, types.ErrInternal},
		{"ADD", "prev", conf + `,"prevResult":7}`, false, CodeDecode},
		{"DEL", "good", conf + "}", false, 0},
	} {
		verb, took, waited, fault = "", 0, false, nil
		env := map[string]string{"CNI_COMMAND": c.verb, "CNI_CONTAINERID": c.container, "CNI_NETNS": "/run/netns/none",
			"CNI_IFNAME": "eth0", "CNI_PATH": "/opt"}
		e := execution[struct{}]{commands: commands}
		err := e.run(func(k string) string { return env[k] }, strings.NewReader(c.stdin), io.Discard)
		code := uint(0)
		if fault != nil {
			code = fault.Code
		}
		if verb != c.verb || waited != c.waited || code != c.code || (err == nil) != (fault == nil) {
			t.Errorf("%+v ended as %s, waited %v, %v; the answer is %v", c, verb, waited, fault, err)
		}
		if c.verb == "ADD" && c.code != CodeDecode && took < delay {
			t.Errorf("%+v took %v, want at least %v", c, took, delay)
		}
	}
}
