// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"path/filepath"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/values"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A validation collects the mistakes of a configuration.
type validation struct{ values.Mistakes }

func (v *validation) families(texts []string) []Family {
	if texts == nil {
		return []Family{IPv4}
	}
	var fs []Family
	for _, text := range texts {
		i := slices.IndexFunc(nl.Families, func(f Family) bool { return f.String() == text })
		if i < 0 || slices.Contains(fs, nl.Families[i]) {
			v.Wrong("ipFamilies: %q: want IPv4, IPv6, or both", texts)
			return []Family{IPv4}
		}
		fs = append(fs, nl.Families[i])
	}
	if len(fs) == 0 {
		v.Wrong("ipFamilies: []: want IPv4, IPv6, or both")
	}
	return fs
}

func (v *validation) provision(text string) Provision {
	p := cmp.Or(Provision(text), ProvisionFull)
	if !v.OneOf("provision", string(p), string(ProvisionFull), string(ProvisionAssign), string(ProvisionNone)) {
		return ProvisionNone
	}
	return p
}

func (v *validation) warm(w *registry.Warm) registry.Warm {
	if w == nil {
		return registry.Warm{}
	}
	if w.Min < 0 || w.Max < 0 || w.Max > 0 && w.Max < w.Min {
		v.Wrong(`warm: {"min": %d, "max": %d}: want "min" 0 or more, and "max" either 0 or not less than "min"`, w.Min,
			w.Max)
	}
	return *w
}

// checkTracking checks the timeouts of connectionTracking, and returns them. The ranges are from the EC2 API reference
// (ConnectionTrackingSpecificationRequest).
func (v *validation) checkTracking(t *registry.Tracking) registry.Tracking {
	if t == nil {
		return registry.Tracking{}
	}
	within := func(key string, n, least, most int) {
		if n != 0 && (n < least || n > most) {
			v.Wrong("connectionTracking: %s: %d: want %d to %d seconds, or 0 for the value of the boot ENI", key, n,
				least, most)
		}
	}
	within("tcpEstablishedTimeout", t.TCPEstablished, 60, 432000)
	within("udpStreamTimeout", t.UDPStream, 60, 180)
	within("udpTimeout", t.UDP, 30, 60)
	return *t
}

// checkLeaseLog checks the value of the key leaseLog, and returns the value with its defaults.
func (v *validation) checkLeaseLog(l *registry.LeaseLog) registry.LeaseLog {
	const maxMiB, maxFiles = 1024, 100
	if l == nil || *l == (registry.LeaseLog{}) {
		return registry.LeaseLog{}
	}
	log := registry.LeaseLog{File: l.File, MaxSize: cmp.Or(l.MaxSize, 10), MaxFiles: cmp.Or(l.MaxFiles, 5)}
	if !filepath.IsAbs(l.File) || filepath.Clean(l.File) != l.File {
		v.Wrong("leaseLog: file: %q: want the whole path of a file, for example /var/log/cni-ipvlan-vpc-k8s/leases.log",
			l.File)
	}
	v.Between("leaseLog: maxSize", &log.MaxSize, 0, 1, maxMiB)
	v.Between("leaseLog: maxFiles", &log.MaxFiles, 0, 1, maxFiles)
	return log
}

// checkNamespaces finds two pools that have the same entry in their key "namespaces".
func (v *validation) checkNamespaces(pools []Policy) {
	v.Within = ""
	claimed := map[string]string{}
	for _, p := range pools {
		for _, g := range p.namespaces {
			if other, ok := claimed[g]; ok {
				v.Wrong(`pools: %s and %s both have the entry %q in "namespaces": want each entry in only one pool`,
					other, p.Pool, g)
			}
			claimed[g] = p.Pool
		}
	}
}
