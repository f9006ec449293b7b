// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A podSysctl is a sysctl that pods rely on.
type podSysctl struct {
	nl.Sysctl
	severity, means string
}

// checkSysctls checks the sysctls that the first ADD has set. systemd-sysctl and the program "tuned" overwrite a sysctl
// if their files have another value. On a node without pods, the next ADD sets the sysctls.
func (p *Node) checkSysctls(context.Context) ([]Finding, error) {
	if p.state.Leases.Len() == 0 {
		return nil, nil
	}
	networks, _ := p.conflists.Networks() // checkConfig reports mistakes in networks
	var all []podSysctl
	for _, n := range networks {
		all = append(all, slices.DeleteFunc(p.podSysctls(n.Pair), func(k podSysctl) bool {
			return slices.Contains(all, k)
		})...)
	}
	var found []Finding
	for _, k := range all {
		err := p.checkSysctl(k.Sysctl)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		found = append(found, Finding{Severity: k.severity, About: strings.TrimPrefix(k.String(), "sysctl -w "),
			Means: err.Error() + ". " + k.means,
			Do:    k.String() + ", or " + runRepair + correctSetting, fix: p.objectFix(k.Sysctl), partly: true})
	}
	return found, nil
}

// checkSysctl returns an error if the value of a sysctl is not k.Value.
func (p *Node) checkSysctl(k nl.Sysctl) error {
	value, err := p.kernel.Sysctl(k.Key)
	if err == nil && value != k.Value {
		err = fmt.Errorf("the value is %s", value)
	}
	return err
}

// podSysctls returns the sysctls that a configuration relies on.
func (p *Node) podSysctls(c ptp.Config) []podSysctl {
	if l, err := p.kernel.LinkByName(c.HostInterface); err == nil {
		c.HostInterface = l.Name // /proc/sys does not know a link's alternative names
	}
	var all []podSysctl
	need := func(key, value, severity, means string) {
		all = append(all, podSysctl{nl.Sysctl{Key: key, Value: value}, severity, means})
	}
	host := func(key string) string { v, _ := p.kernel.Sysctl(key); return v }
	if c.IPMasq {
		need("net/ipv4/ip_forward", "1", severe, "Pods reach neither Services nor the internet")
		need("net/ipv4/conf/"+c.HostInterface+"/forwarding", "1", severe,
			"The kernel drops answers to pods if the answers arrive by "+c.HostInterface+", so pods do not reach the "+
				"internet")
		need("net/ipv4/conf/all/send_redirects", "0", warning,
			"The node sends ICMP redirects to pods. A pod that follows a redirect does not reach Services")
		routed := "net/ipv6/conf/" + c.HostInterface + "/accept_ra"
		if host("net/ipv6/conf/all/forwarding") == "1" && host(routed) == "1" {
			need(routed, "2", severe,
				"With the value 1, a node that forwards IPv6 ignores routers, and loses its default route")
		}
	}
	if ports := c.NodePorts; (ports == nil || *ports != "") && ptp.ChecksStrictly(p.kernel.Sysctl, c.HostInterface) {
		need("net/ipv4/conf/"+c.HostInterface+"/rp_filter", "2", severe,
			"The kernel drops packets to NodePorts, because their answers leave by another link")
	}
	return all
}
