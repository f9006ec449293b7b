// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A TableDump is the kernel's content of one of our tables of nftables.
type TableDump struct {
	Name   string      `json:"name"` // the family and the name: "inet cni_ipvlan_vpc_k8s"
	Chains []ChainDump `json:"chains"`
}

// A ChainDump is a chain in a TableDump.
type ChainDump struct {
	Name     string     `json:"name"`
	Type     string     `json:"type"` // "" if no hook calls the chain
	Hook     string     `json:"hook"`
	Priority int        `json:"priority"`
	Policy   string     `json:"policy"` // "" means accept
	Rules    []RuleDump `json:"rules"`
}

// A RuleDump has a string for each expression of a rule: its name, and its attributes in hexadecimal. For a counter,
// the string has the number of packets instead of the attributes. A RuleDump leaves out the attributes of expressions
// that our rules never have, because such attributes may contain text of other programs.
type RuleDump []string

// ownExpressions has the names of the expressions that our rules may have.
var ownExpressions = []string{"bitwise", "byteorder", "cmp", "counter", "ct", "exthdr", "fib", "immediate", "limit",
	"lookup", "masq", "meta", "nat", "payload", "range", "rt"}

// DumpTables returns our tables of nftables in the namespace.
func (n *NS) DumpTables() ([]TableDump, error) {
	names, err := n.Tables()
	if err != nil {
		return nil, err
	}
	var all []TableDump
	for _, name := range names {
		family, table, _ := strings.Cut(name, " ")
		if !isOwnTable(table) {
			continue
		}
		d, err := n.dumpTable(Table{Family: family, Name: table})
		if err != nil {
			return nil, fmt.Errorf("%s: read the table %s: %w", n.Name, name, err)
		}
		d.Name = name
		all = append(all, d)
	}
	return all, nil
}

func (n *NS) dumpTable(t Table) (d TableDump, err error) {
	chains, err := n.dumpObjects(unix.NFT_MSG_GETCHAIN, t.family())
	if err != nil {
		return d, err
	}
	for _, m := range chains {
		msg := m[nl.SizeofNfgenmsg:]
		if unix.ByteSliceToString(attrAt(msg, unix.NFTA_CHAIN_TABLE)) != t.Name {
			continue
		}
		c, _ := parseChain(m[0], msg)
		dump := ChainDump{Name: c.Name, Type: c.Type, Hook: c.Hook, Priority: c.Priority, Policy: c.Policy}
		rules, err := t.listRules(n, attrString(unix.NFTA_RULE_CHAIN, c.Name))
		if err != nil {
			return d, err
		}
		for _, r := range rules {
			dump.Rules = append(dump.Rules, dumpRule(r[nl.SizeofNfgenmsg:]))
		}
		d.Chains = append(d.Chains, dump)
	}
	return d, nil
}

func dumpRule(msg []byte) (r RuleDump) {
	for name, data := range expressions(msg) {
		switch {
		case !slices.Contains(ownExpressions, name):
			r = append(r, name)
		case name == "counter":
			packets := attrAt(data, unix.NFTA_COUNTER_PACKETS)
			if len(packets) == 8 {
				name += fmt.Sprintf(" packets %d", binary.BigEndian.Uint64(packets))
			}
			r = append(r, name)
		default:
			r = append(r, name+" "+hex.EncodeToString(data))
		}
	}
	return r
}

// A ProgramDump is one of our BPF objects: a pinned program or map, or the program of a filter at a link.
type ProgramDump struct {
	Name string `json:"name"`
	Link string `json:"link"` // "" for a pinned object
	Hook string `json:"hook"` // "ingress" or "egress"; "" for a pinned object
	ID   uint32 `json:"id"`   // the ID of the program or map; 0 if the kernel does not report the ID
	Tag  string `json:"tag"`  // the kernel's hash of the program's instructions
}

// DumpPins returns our pinned BPF objects. They belong to the machine, and not to a network namespace.
func DumpPins() (all []ProgramDump, failed error) {
	files, err := filepath.Glob(filepath.Join(pinDir, OwnTable+":*"))
	failed = err
	for _, f := range files {
		p := ProgramDump{Name: filepath.Base(f)}
		fd, err := objCommand(unix.BPF_OBJ_GET, p.Name, 0)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("%s: %w", f, err))
		default:
			p.ID, p.Tag = progInfo(fd)
			unix.Close(fd)
		}
		all = append(all, p)
	}
	return all, failed
}

// DumpFilters returns our filters at the given links of the namespace.
func (n *NS) DumpFilters(links []Link) (all []ProgramDump, failed error) {
	for _, l := range links {
		for hook, parent := range map[string]uint32{"ingress": tcIngress, "egress": tcEgress} {
			of, err := n.ownFilters(l, hook, parent)
			all, failed = append(all, of...), errors.Join(failed, err)
		}
	}
	slices.SortFunc(all, func(a, b ProgramDump) int {
		return strings.Compare(a.Link+" "+a.Hook+" "+a.Name, b.Link+" "+b.Hook+" "+b.Name)
	})
	return all, failed
}

// ownFilters returns our filters at a hook of a link. parent is tcIngress or tcEgress.
func (n *NS) ownFilters(l Link, hook string, parent uint32) (all []ProgramDump, err error) {
	msgs, err := n.sendRequest(unix.NETLINK_ROUTE, unix.RTM_GETTFILTER, unix.NLM_F_DUMP, unix.RTM_NEWTFILTER,
		&nl.TcMsg{Ifindex: int32(l.Index), Parent: parent})
	if isNotExist(err) || errors.Is(err, unix.EINVAL) {
		return nil, nil // the link has no qdisc with this hook
	}
	if err != nil {
		return nil, fmt.Errorf("list the filters of %s: %w", l.Name, err)
	}
	for _, m := range msgs {
		options := attrAt(m[nl.SizeofTcMsg:], nl.TCA_OPTIONS)
		name := unix.ByteSliceToString(attrAt(options, nl.TCA_BPF_NAME))
		if strings.HasPrefix(name, OwnTable+":") {
			all = append(all, ProgramDump{Name: name, Link: l.Name, Hook: hook,
				ID:  nativeUint(attrAt(options, nl.TCA_BPF_ID)),
				Tag: hex.EncodeToString(attrAt(options, nl.TCA_BPF_TAG))})
		}
	}
	return all, nil
}

// progInfo returns the ID of a program or map, and the tag of a program.
func progInfo(fd int) (id uint32, tag string) {
	var info struct { // the beginning of struct bpf_prog_info; struct bpf_map_info has the ID at the same offset
		progType, id uint32
		tag          [8]byte
	}
	attr := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	_, err := bpfCommand(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return 0, ""
	}
	return info.id, hex.EncodeToString(info.tag[:])
}
