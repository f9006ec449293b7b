// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A validation collects mistakes.
type validation struct {
	mistakes []error
	within   string // the part of the configuration that is looked at
}

func (v *validation) wrong(format string, args ...any) {
	v.mistakes = append(v.mistakes, fmt.Errorf("%s%w", v.within, fmt.Errorf(format, args...)))
}

// atLeast returns *n, or the default if n is nil.
func (v *validation) atLeast(key string, n *int, otherwise, least int) int {
	if n == nil {
		return otherwise
	}
	if *n < least {
		v.wrong("%s: %d: want %d or more", key, *n, least)
	}
	return *n
}

func (v *validation) between(key string, n *int, otherwise, least, most int) int {
	if n != nil && (*n < least || *n > most) {
		v.wrong("%s: %d: want %d to %d", key, *n, least, most)
		return otherwise
	}
	return v.atLeast(key, n, otherwise, least)
}

func (v *validation) prefixes(key string, texts []string) []netip.Prefix {
	var ps []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			v.wrong("%s: %q: want a CIDR block, for example 10.8.0.0/16", key, text)
			continue
		}
		ps = append(ps, p.Masked())
	}
	return ps
}

func (v *validation) families(texts []string) []Family {
	if texts == nil {
		return []Family{IPv4}
	}
	var fs []Family
	for _, text := range texts {
		i := slices.IndexFunc(nl.Families, func(f Family) bool { return f.String() == text })
		if i < 0 || slices.Contains(fs, nl.Families[i]) {
			v.wrong("ipFamilies: %q: want IPv4, IPv6, or both", texts)
			return []Family{IPv4}
		}
		fs = append(fs, nl.Families[i])
	}
	if len(fs) == 0 {
		v.wrong("ipFamilies: []: want IPv4, IPv6, or both")
	}
	return fs
}

func (v *validation) provision(text string) Provision {
	switch p := Provision(text); p {
	case "":
		return ProvisionFull
	case ProvisionFull, ProvisionAssign, ProvisionNone:
		return p
	}
	v.wrong("provision: %q: want full, assign or none", text)
	return ProvisionNone
}

func (v *validation) warm(w *registry.Warm) registry.Warm {
	if w == nil {
		return registry.Warm{}
	}
	if w.Min < 0 || w.Max < 0 || w.Max > 0 && w.Max < w.Min {
		v.wrong(`warm: {"min": %d, "max": %d}: want min 0 or more, and max at least as much, or 0`, w.Min, w.Max)
	}
	return *w
}

// tracking checks timeouts of connection tracking. The ranges are EC2's (API reference,
// ConnectionTrackingSpecificationRequest). 0 leaves a timeout to the boot ENI.
func (v *validation) tracking(t *registry.Tracking) registry.Tracking {
	if t == nil {
		return registry.Tracking{}
	}
	within := func(key string, n, least, most int) {
		if n != 0 && (n < least || n > most) {
			v.wrong("connectionTracking: %s: %d: want %d to %d seconds, or 0 for that of the boot ENI", key, n, least, most)
		}
	}
	within("tcpEstablishedTimeout", t.TCPEstablished, 60, 432000)
	within("udpStreamTimeout", t.UDPStream, 60, 180)
	within("udpTimeout", t.UDP, 30, 60)
	return *t
}

// leaseLog checks where the lease log is, and how large it may become.
func (v *validation) leaseLog(l *registry.LeaseLog) registry.LeaseLog {
	const maxMiB, maxFiles = 1024, 100
	if l == nil || *l == (registry.LeaseLog{}) {
		return registry.LeaseLog{}
	}
	log := registry.LeaseLog{File: l.File, MaxSize: cmp.Or(l.MaxSize, 10), MaxFiles: cmp.Or(l.MaxFiles, 5)}
	if !filepath.IsAbs(l.File) || filepath.Clean(l.File) != l.File {
		v.wrong("leaseLog: file: %q: want the whole path of a file, for example /var/log/cni-ipvlan-vpc-k8s/leases.log", l.File)
	}
	v.between("leaseLog: maxSize", &log.MaxSize, 0, 1, maxMiB)
	v.between("leaseLog: maxFiles", &log.MaxFiles, 0, 1, maxFiles)
	return log
}

// globs checks names of namespaces. A star is allowed only at the end: otherwise it would not
// be clear which of two globs is the narrower one.
func (v *validation) globs(key string, globs []string) []string {
	for _, g := range plugin.Namespaces(globs).Invalid() {
		v.wrong("%s: %q: want a namespace, or the beginning of one and a *", key, g)
	}
	return globs
}

// claims refuses two pools with the same namespace or the same glob.
func (v *validation) claims(pools []Policy) {
	v.within = ""
	claimed := map[string]string{}
	for _, p := range pools {
		for _, g := range p.namespaces {
			if other, ok := claimed[g]; ok {
				v.wrong("pools: %s and %s both have the namespaces %q: want one of them to name fewer", other, p.Pool, g)
			}
			claimed[g] = p.Pool
		}
	}
}
