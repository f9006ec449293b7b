// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	cni "github.com/containernetworking/cni/pkg/version"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// versions are those of the specification that our plugins speak.
var versions = cni.VersionsStartingFrom("0.3.0").SupportedVersions()

// networkName is CNI's rule for the name of a network (CNI specification 1.1.0, section 1).
var networkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`)

// head reviews what is not about one plugin.
func (r *review) head() {
	if ext := filepath.Ext(r.file); ext == ".conf" || ext == ".json" {
		r.wrong("", "the file ends in %s: runtimes take only what ends in .conflist for a list", ext)
	}
	if !networkName.MatchString(r.Name) {
		r.wrong("", "name: %q: want letters, digits, and then also _ . -", r.Name)
	}
	want := "want one of " + strings.Join(versions, ", ")
	if r.CNIVersion == "" && len(r.CNIVersions) == 0 {
		r.wrong("", "cniVersion must be specified: without it the runtime takes the oldest, which knows no chains: %s", want)
	}
	if r.CNIVersion != "" && !slices.Contains(versions, r.CNIVersion) {
		r.wrong("", "cniVersion: %q: %s", r.CNIVersion, want)
	}
	for _, v := range r.CNIVersions {
		if !slices.Contains(versions, v) {
			r.wrong("", "cniVersions: %q: %s", v, want)
		}
	}
}

// chain reviews the order of our plugins: each needs the result of the one before it.
func (r *review) chain() {
	order := []string{typeIPAM, typeIPVlan, typePTP}
	at := map[string]int{}
	last := -1
	for i, m := range r.Plugins {
		if m.Type == "" {
			r.wrong(r.where(i), "type must be specified: it is the name of the plugin's program")
		}
		place := slices.Index(order, m.Type)
		if place < 0 {
			continue
		}
		if _, twice := at[m.Type]; twice {
			r.wrong(r.where(i), "it is in the chain twice")
			continue
		}
		at[m.Type] = i
		if place < last {
			r.wrong(r.where(i), "it stands behind %s, which needs its result", order[last])
		}
		last = max(last, place)
	}
	if len(at) == 0 {
		r.wrong("", "none of the plugins is %s", strings.Join(order, ", "))
		return
	}
	if i, ok := at[typeIPAM]; !ok {
		r.wrong("", "there is no %s, with which the chain begins: the others have no address to work with", typeIPAM)
	} else if i > 0 && !slices.Contains(order, r.Plugins[0].Type) {
		r.wrong(r.where(i), "it stands behind %s: the chain begins with it, and what comes before is lost", r.Plugins[0].Type)
	}
	if i, ok := at[typePTP]; ok {
		r.pair(i)
	}
}

// pair reviews what of the veth pair others can be in the way of.
func (r *review) pair(i int) {
	const podLink = "eth0" // CNI_IFNAME of all Kubernetes runtimes
	var c ptp.Config
	if json.Unmarshal(r.Plugins[i].raw, &c) != nil {
		return
	}
	if c.ContainerInterface == podLink {
		r.wrong(r.where(i), "containerInterface: %q: that is the name of the pod's first link, the ENI's: want eth1, for example", podLink)
	}
	for j, m := range r.Plugins {
		if m.Type == "portmap" {
			r.portmap(j, *cmp.Or(c.NodePortMark, new(uint32(ptp.DefaultNodePortMark))))
		}
	}
}

// portmap reviews whether the plugin of that name uses one of the mark's bits, which its
// iptables backend does by default: what other pods send to a hostPort then goes astray.
func (r *review) portmap(i int, mark uint32) {
	var c struct {
		Backend     string `json:"backend"`
		MarkMasqBit *int   `json:"markMasqBit"`
	}
	const defaultBit = 13
	if json.Unmarshal(r.Plugins[i].raw, &c) != nil || c.Backend == "nftables" {
		return
	}
	if bit := *cmp.Or(c.MarkMasqBit, new(defaultBit)); bit >= 0 && mark>>bit&1 != 0 {
		r.wrong(r.where(i), "markMasqBit: %d (if left out, 13) is in the nodePortMark %#x: other pods of the node would not reach hostPorts: want another, such as 12", bit, mark)
	}
}

// podAnnotations is the capability by which runtimes hand the pod's annotations on.
const podAnnotations = "io.kubernetes.cri.pod-annotations"

// pools reviews what cannot work between the pools and the rest.
func (r *review) pools(where string, i int, c *lease.Config) {
	var head struct {
		Capabilities map[string]bool `json:"capabilities"`
	}
	_ = json.Unmarshal(r.Plugins[i].raw, &head) // an object, which has been decoded once
	for name, p := range c.Pools {
		if len(p.Selectable) > 0 && !head.Capabilities[podAnnotations] {
			r.wrong(where, `pools: %s: selectable: no pod can ask for it: add "capabilities": {%q: true}`, name, podAnnotations)
		}
	}
	for _, p := range c.Policies() {
		if p.Provision == lease.ProvisionNone && p.Warm.Min > 0 {
			r.wrong(where, `warm: min %d of pool %s: "provision" is "none", so nobody may ask EC2 for them`, p.Warm.Min, poolName(p.Pool))
		}
	}
}

// programs looks for the plugins where runtimes do.
func (r *review) programs(dir string) {
	if dir == "" {
		return
	}
	for i, m := range r.Plugins {
		path := filepath.Join(dir, m.Type)
		fi, err := os.Stat(path)
		switch {
		case m.Type == "":
			continue // chain has found that
		case errors.Is(err, fs.ErrNotExist):
			r.wrong(r.where(i), "there is no %s: install it (--bin-dir says where it is)", path)
		case err != nil:
			r.wrong(r.where(i), "%v", err)
		case fi.IsDir() || fi.Mode()&0o111 == 0:
			r.wrong(r.where(i), "%s is no program: want a file that may be executed", path)
		}
	}
}

// neighbours compares the file with the others in its folder: two networks of one name
// share their leases, and the node masquerades for the pods of all.
func (r *review) neighbours(dir string) error {
	files, err := confFiles(dir)
	if err != nil {
		return err
	}
	mine, has := pairOf(r.conflist)
	for _, f := range files {
		other, err := readConflist(f)
		if err != nil || filepath.Base(f) == filepath.Base(r.file) {
			continue // its own review says what is wrong with it
		}
		if other.plugin(typeIPAM) != nil && other.Name == r.Name {
			r.wrong("", "name: %s has the network %q, too: an attachment to one ends with a DEL of the other", f, r.Name)
		}
		theirs, also := pairOf(other)
		if !has || !also {
			continue
		}
		if mine.IPMasq != theirs.IPMasq {
			r.wrong("", "%s has another ipMasq: where one network masquerades, the node does so for the other's pods, too", f)
		}
		if mine.KeepCaller && !theirs.KeepCaller {
			r.wrong("", "keepCaller: %s has it not: the node gives callers its own address for that network, and does so for the pods of this one, too", f)
		}
	}
	return nil
}

// pairOf is what a list has for ptp, if it has that.
func pairOf(c conflist) (p ptp.Config, has bool) {
	raw := c.plugin(typePTP)
	has = raw != nil && json.Unmarshal(raw, &p) == nil
	return p, has
}
