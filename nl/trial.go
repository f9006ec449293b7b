// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// An answer says whether a rule applies to the packet.
type answer int

const (
	no answer = iota
	maybe
	yes
)

func answerOf(b bool) answer {
	if b {
		return yes
	}
	return no
}

// meet runs a rule as the kernel would, with what is known of the packet in the registers.
func (t *trial) meet(r *nftables.Rule) (is answer, v expr.Verdict, err error) {
	is, v.Kind = yes, undecided
	registers := map[uint32][]byte{} // nil: not known
	for _, e := range r.Exprs {
		one := yes
		switch e := e.(type) {
		case *expr.Meta:
			registers[e.Register] = t.meta(e.Key)
		case *expr.Ct:
			registers[e.Register] = t.ct(e.Key)
		case *expr.Bitwise:
			registers[e.DestRegister] = combined(registers[e.SourceRegister], e.Mask, e.Xor)
		case *expr.Cmp:
			one = compares(registers[e.Register], e)
		case *expr.Lookup:
			if one, err = t.lookup(registers[e.SourceRegister], e); err != nil {
				return no, v, err
			}
			if e.IsDestRegSet && one != no { // a map, of verdicts for example
				one, v.Kind = maybe, expr.VerdictAccept
			}
		case *expr.Match:
			one = t.match(e)
		case *expr.Target:
			if e.Name == "REJECT" {
				v.Kind = expr.VerdictDrop
			}
		case *expr.Reject:
			v.Kind = expr.VerdictDrop
		case *expr.Verdict:
			v = *e
		case *expr.Counter, *expr.Log:
		case *expr.Payload:
			delete(registers, e.DestRegister)
		default:
			clear(registers)
			one = maybe
		}
		if is = min(is, one); is == no {
			break
		}
	}
	return is, v, nil
}

// meta is what the kernel would load for a key, nil if that is not known.
func (t *trial) meta(key expr.MetaKey) []byte {
	p := t.packet
	link := func(name string) []byte {
		i, err := t.ns.index(name)
		if err != nil {
			return nil
		}
		return binaryutil.NativeEndian.PutUint32(uint32(i))
	}
	name := func(name string) []byte { return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...) }
	switch key {
	case expr.MetaKeyIIFNAME:
		return name(p.In)
	case expr.MetaKeyOIFNAME:
		return name(p.Out)
	case expr.MetaKeyIIF:
		return link(p.In)
	case expr.MetaKeyOIF:
		return link(p.Out)
	case expr.MetaKeyIIFGROUP:
		return binaryutil.NativeEndian.PutUint32(p.InGroup)
	case expr.MetaKeyOIFGROUP:
		return binaryutil.NativeEndian.PutUint32(p.OutGroup)
	case expr.MetaKeyMARK:
		return make([]byte, 4)
	case expr.MetaKeyNFPROTO:
		if p.IPv6 {
			return []byte{unix.NFPROTO_IPV6}
		}
		return []byte{unix.NFPROTO_IPV4}
	}
	return nil
}

func (t *trial) ct(key expr.CtKey) []byte {
	switch key {
	case expr.CtKeySTATE:
		if t.packet.Answer {
			return binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED)
		}
		return binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW)
	case expr.CtKeySTATUS:
		if t.packet.Rewritten {
			return binaryutil.NativeEndian.PutUint32(statusDNAT)
		}
		return make([]byte, 4)
	}
	return nil
}

func combined(v, mask, xor []byte) []byte {
	if len(v) != len(mask) || len(v) != len(xor) {
		return nil
	}
	result := make([]byte, len(v))
	for i := range v {
		result[i] = v[i]&mask[i] ^ xor[i]
	}
	return result
}

// compares compares as many bytes as the rule has: of a name that ends in an asterisk,
// those before it.
func compares(v []byte, e *expr.Cmp) answer {
	if v == nil || len(v) < len(e.Data) {
		return maybe
	}
	order := bytes.Compare(v[:len(e.Data)], e.Data)
	switch e.Op {
	case expr.CmpOpEq:
		return answerOf(order == 0)
	case expr.CmpOpNeq:
		return answerOf(order != 0)
	}
	return maybe
}

// lookup looks for a value in a set. Of one of intervals it says no more than maybe.
func (t *trial) lookup(v []byte, e *expr.Lookup) (answer, error) {
	if v == nil {
		return maybe, nil
	}
	elements, err := t.conn.GetSetElements(&nftables.Set{Table: t.table, Name: e.SetName})
	if err != nil {
		return maybe, err
	}
	is := false
	for _, k := range elements {
		if k.IntervalEnd || len(k.KeyEnd) > 0 || len(k.Key) != len(v) {
			return maybe, nil
		}
		is = is || bytes.Equal(k.Key, v)
	}
	return answerOf(is != e.Invert), nil
}

// match is what a match of iptables says, of which there are many.
func (t *trial) match(e *expr.Match) answer {
	switch info := e.Info.(type) {
	case *xt.Comment:
		return yes
	case *xt.ConntrackMtinfo3:
		return t.conntrack(info)
	case *xt.Unknown:
		if e.Name == "mark" && len(*info) >= 9 { // struct xt_mark_mtinfo1: mark, mask, invert
			return answerOf(bytes.Equal((*info)[:4], make([]byte, 4)) != ((*info)[8] != 0))
		}
	}
	return maybe
}

// conntrack is what iptables' match of that name says about the state of the connection.
func (t *trial) conntrack(m *xt.ConntrackMtinfo3) answer {
	const (
		established = 1 << 1 // XT_CONNTRACK_STATE_BIT(IP_CT_ESTABLISHED)
		begins      = 1 << 3 // XT_CONNTRACK_STATE_BIT(IP_CT_NEW)
		dnat        = 1 << 7 // XT_CONNTRACK_STATE_DNAT
	)
	if m.MatchFlags&^uint16(xt.ConntrackState|xt.ConntrackStateAlias) != 0 {
		return maybe // it asks for more than the state
	}
	bit := uint16(begins)
	if t.packet.Answer {
		bit = established
	}
	is := m.StateMask&bit != 0 || m.StateMask&dnat != 0 && t.packet.Rewritten
	return answerOf(is != (m.InvertFlags&uint16(xt.ConntrackState) != 0))
}
