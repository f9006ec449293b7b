// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// idleEnough is a number of seconds. If security groups forget an idle connection earlier, checkTracking returns a
// finding, because programs keep connections that are idle for minutes. One hour is our choice. Keepalives do not help,
// because Linux sends the first keepalive only after two hours (tcp(7)).
const idleEnough = 3600

// checkTracking looks for ENIs whose security groups soon forget idle TCP connections. The instance type has a default
// for this time, and an ENI can have a setting. If the role does not permit the EC2 call, checkIAM reports that.
func (p *Node) checkTracking(ctx context.Context) ([]Finding, error) {
	me, err := p.cloud.instance(ctx)
	if err != nil {
		return nil, err
	}
	enis, err := p.cloud.attached(ctx, me.ID)
	if err != nil {
		return nil, unlessDenied(err)
	}
	enis = slices.DeleteFunc(enis, func(e aws.ENI) bool {
		return p.state.ENIs[e.ID].Foreign || len(e.Addrs)+len(e.IPv6Addrs)+len(e.IPv6Prefixes) == 0 // an EFA-only ENI
	})
	limits, err := p.cloud.limits(ctx, me.Type)
	if unlessDenied(err) != nil {
		return nil, err
	}
	return trackingFindings(enis, me.Type, limits.TCPEstablished), nil
}

func unlessDenied(err error) error {
	if aws.NotAllowed(err) {
		return nil
	}
	return err
}

// trackingFindings returns a finding for each short timeout of the ENIs. The parameter defaultTimeout is the default
// timeout of the instance type in seconds, or 0 if the default is not known.
func trackingFindings(enis []aws.ENI, instanceType string, defaultTimeout int) []Finding {
	type timeout struct {
		seconds int
		set     bool
	}
	short := map[timeout][]string{}
	for _, e := range enis {
		t := timeout{cmp.Or(e.Tracking.TCPEstablished, defaultTimeout), e.Tracking.TCPEstablished != 0}
		if t.seconds > 0 && t.seconds < idleEnough {
			short[t] = append(short[t], e.ID)
		}
	}
	var found []Finding
	for _, t := range slices.SortedFunc(maps.Keys(short), func(a, b timeout) int {
		return cmp.Compare(a.seconds, b.seconds)
	}) {
		severity, origin := warning, "the default of "+instanceType
		if t.set {
			severity, origin = note, "set on the ENI"
		}
		found = append(found, Finding{Severity: severity,
			About: strings.Join(slices.Sorted(slices.Values(short[t])), ", "),
			Means: fmt.Sprintf("if a TCP connection is idle for %d s (%s), EC2 no longer tracks it, and drops later "+
				"packets. So connections that are idle for longer break, for example connections to databases",
				t.seconds, origin),
			Do: fmt.Sprintf(
				`set a longer timeout (aws ec2 modify-network-interface-attribute --network-interface-id ID `+
					`--connection-tracking-specification TcpEstablishedTimeout=86400), and for new ENIs set `+
					`"connectionTracking": {"tcpEstablishedTimeout": 86400} in the conflist. Or let the programs send `+
					`TCP keepalives more often than every %d s`, t.seconds)})
	}
	return found
}
