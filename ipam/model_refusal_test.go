// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func init() { acts = append(acts, act{5, true, (*model).refuse}, act{3, true, (*model).relent}) }

// scoped has codes by which EC2 refuses to change one object. ofSubnets has the actions that EC2 can refuse in one
// subnet. ofAccount has codes by which EC2 refuses all changes.
var (
	scoped = []string{"AuthFailure", "OperationNotPermitted", "UnsupportedOperation", "IncorrectState",
		"InvalidParameterValue"}
	ofSubnets = []string{"CreateNetworkInterface", "AttachNetworkInterface"}
	ofAccount = []string{"AuthFailure", "OptInRequired", "NetworkInterfaceLimitExceeded", "RequestLimitExceeded"}
)

// refuse makes EC2 refuse an action on one ENI or in one subnet, until relent is called. The model's checks find what
// is lost or leaks. In the end, EC2 refuses nothing, and the ENI or subnet must serve again.
func (m *model) refuse() {
	object, action := pick(m.rng, m.EC2.ENIs()...).ID, pick(m.rng, writes[:3]...)
	if m.chance(50) {
		object, action = pick(m.rng, "subnet-pod0", "subnet-pod1"), pick(m.rng, ofSubnets...)
	}
	code := pick(m.rng, scoped...)
	switch n := m.rng.IntN(100); {
	case n < 12:
		m.refuseAll(pick(m.rng, ofAccount...))
		return
	case n < 17:
		m.isolate()
		return
	}
	if slices.Contains(m.denied, action) {
		return // the role may not call the action at all
	}
	m.logf("%s %s of %s will be refused as %s", m.clock(), action, object, code)
	m.EC2.RefuseOn(object, action, code, "It is refused because a test has ordered it.")
	m.refusals = append(m.refusals, func() { m.EC2.RefuseOn(object, action, "", "") })
}

// refuseAll makes EC2 refuse all changes, until relent is called.
func (m *model) refuseAll(code string) {
	if m.denied != nil {
		return // the permissions of the role must not change
	}
	m.logf("%s all changes will be refused as %s", m.clock(), code)
	for _, action := range writes {
		m.EC2.Fail(action, code, -1)
		m.refusals = append(m.refusals, func() { m.EC2.Fail(action, "", 0) })
	}
}

// isolate leaves the node without a way to EC2, until relent is called.
func (m *model) isolate() {
	m.logf("%s no way to EC2", m.clock())
	m.cut = true
	began := time.Now()
	m.refusals = append(m.refusals, func() {
		m.cut = false
		for _, e := range m.attached() {
			m.outlives[e.ID] = m.outlives[e.ID] || time.Since(began) > intentLife
		}
	})
}

// stick makes EC2 detach ENIs for hours, until relent is called.
func (m *model) stick() {
	d := pick(m.rng, 10*time.Minute, 3*time.Hour)
	m.logf("%s EC2 detaches ENIs for %v", m.clock(), d)
	m.EC2.DetachSlowly(d)
	m.refusals = append(m.refusals, func() { m.EC2.DetachSlowly(0) })
}

// refusing reports whether the node passes over something that EC2 has refused.
func refusing(s *registry.State) bool {
	for _, r := range s.Refusals {
		if time.Now().Before(r.Until) {
			return true
		}
	}
	return false
}

// relent ends all refusals of refuse and refuseAll.
func (m *model) relent() {
	m.logf("%s EC2 refuses no object any more", m.clock())
	for _, allow := range m.refusals {
		allow()
	}
	m.refusals = nil
}
