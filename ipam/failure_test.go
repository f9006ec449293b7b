// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// refused runs a burst whose calls EC2 refuses, and returns the errors of the ADDs. Each error must report which
// permission is missing.
func (n *node) refused(pods int) (failed []types.Error) {
	n.Helper()
	n.EC2.Fail("CreateNetworkInterface", "UnauthorizedOperation", -1)
	n.EC2.Delay("CreateNetworkInterface", 300*time.Millisecond)
	_, failed = n.burst(0, pods)
	if len(failed) != pods {
		n.Errorf("%d of %d ADDs failed", len(failed), pods)
	}
	for _, e := range failed {
		if e.Code != plugin.CodeTryAgain || !strings.Contains(e.Msg, "CreateNetworkInterface: UnauthorizedOperation") ||
			e.Details != "allow ec2:CreateNetworkInterface in the instance role" {
			n.Errorf("error %d: %s (%s)", e.Code, e.Msg, e.Details)
		}
	}
	return failed
}

// TestRefusedForAll: EC2 refuses the calls of a burst. Each ADD reports which permission is missing, and few ADDs have
// asked EC2.
func TestRefusedForAll(t *testing.T) {
	const pods = 60
	n := newNode(t, "m5.large", ec2sim.Config{}, nil)
	n.refused(pods)
	asked := n.EC2.Asked("CreateNetworkInterface")
	// The first call serves the ADDs that waited when it began, and the second call serves all others. There are more
	// calls if some ADDs do not have their turn within two seconds.
	if asked > pods/6 {
		t.Errorf("EC2 was asked %d times", asked)
	}
	t.Logf("%d ADDs, asked %d times", pods, asked)
	n.EC2.Fail("CreateNetworkInterface", "UnauthorizedOperation", 0)
	n.Forgive()
	n.add("later")
}

// TestOverdue: an ADD waits until its deadline for another ADD, which asks EC2. The error of the waiting ADD says what
// delays the other ADD.
func TestOverdue(t *testing.T) {
	for _, test := range []struct {
		name, action, code string // code is the error of EC2; empty: EC2 does not answer
		stuck              func(*registry.State) bool
		msg, hint          string
	}{
		{"throttled", "CreateNetworkInterface", "RequestLimitExceeded",
			func(s *registry.State) bool { return len(s.NotBefore) > 0 },
			"CreateNetworkInterface: EC2 throttles: this node waits until",
			"EC2 limits how often the whole account may call CreateNetworkInterface"},
		{"failing", "DescribeSubnets", "InternalError", func(s *registry.State) bool { return len(s.Failures) > 0 },
			"DescribeSubnets: InternalError", ""},
		{"silent", "CreateNetworkInterface", "", func(s *registry.State) bool {
			for _, i := range s.Intents {
				if i.Action == "CreateNetworkInterface" {
					return true
				}
			}
			return false
		}, "EC2 has not answered CreateNetworkInterface since ", "raise addTimeout"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := &mute{}
			n := counting(t, alone, "m5.large", m)
			if test.code == "" {
				m.hush(test.action)
			} else {
				n.EC2.Fail(test.action, test.code, -1)
			}
			leader := n.cni("ADD", "leader", nil)
			n.start(leader)
			defer func() {
				leader.Process.Kill()
				leader.Wait()
			}()
			n.until("the first ADD is stuck", test.stuck)
			e := n.late()
			if e.Code != plugin.CodeTryAgain || !strings.Contains(e.Msg, test.msg) ||
				!strings.Contains(e.Details, test.hint) {
				t.Errorf("error %d: %s (%s)", e.Code, e.Msg, e.Details)
			}
			if waiters := n.State().Waiters; len(waiters) != 1 {
				t.Errorf("the first ADD waits, but there are the waiters %v", waiters)
			}
			if executed := n.executed(); len(executed) != 1 {
				t.Errorf("both ADDs ask EC2: %v", executed)
			}
		})
	}
}

// late runs an ADD with a short addTimeout, which must fail, and returns its error.
func (n *node) late() types.Error {
	n.Helper()
	return n.fails(n.cni("ADD", "late", map[string]any{"addTimeout": 5}))
}

// fails runs a command of the plugin, which must fail, and returns its error.
func (n *node) fails(cmd *exec.Cmd) (e types.Error) {
	n.Helper()
	n.start(cmd)
	if cmd.Wait() == nil {
		n.Fatalf("%s succeeds: %s", cmd, cmd.Stdout)
	}
	if err := json.Unmarshal(cmd.Stdout.(*bytes.Buffer).Bytes(), &e); err != nil {
		n.Fatalf("%v: %s%s", err, cmd.Stdout, cmd.Stderr)
	}
	return e
}

// A mute carries requests to EC2, and leaves the requests for one action unanswered.
type mute struct {
	mu     sync.Mutex
	action string
	seen   int // requests without an answer
}

// hush makes the mute leave the requests for this action unanswered from now on.
func (m *mute) hush(action string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.action, m.seen = action, 0
}

// ignores reports whether a request gets no answer.
func (m *mute) ignores(body []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.action == "" || !strings.Contains(string(body), "Action="+m.action+"&") {
		return false
	}
	m.seen++
	return true
}

// ignored returns the number of requests that have got no answer.
func (m *mute) ignored() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

func (m *mute) via(service string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if m.ignores(body) {
			<-r.Context().Done()
			return
		}
		r.Body = readCloser{bytes.NewReader(body)}
		next.ServeHTTP(w, r)
	})
}
