// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TestTerms compares the code of each term with the code that package nftables makes.
func TestTerms(t *testing.T) {
	addr, addrPort := netip.MustParseAddr, netip.MustParseAddrPort
	prefixes := func(all ...string) (ps []netip.Prefix) {
		for _, p := range all {
			ps = append(ps, netip.MustParsePrefix(p))
		}
		return ps
	}
	four := binaryutil.NativeEndian.PutUint32
	two := binaryutil.BigEndian.PutUint16
	load := func(key expr.MetaKey) expr.Any { return &expr.Meta{Key: key, Register: 1} }
	track := func(key expr.CtKey) expr.Any { return &expr.Ct{Key: key, Register: 1} }
	is := func(b []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: b} }
	not := func(b []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: b} }
	bits := func(mask, xor []byte) expr.Any {
		return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: xor}
	}
	header := func(base expr.PayloadBase, offset, size uint32) expr.Any {
		return &expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: size}
	}
	into := func(register uint32, b []byte) expr.Any { return &expr.Immediate{Register: register, Data: b} }
	tcp := []expr.Any{load(expr.MetaKeyL4PROTO), is([]byte{6})}
	then := func(first []expr.Any, more ...expr.Any) []expr.Any {
		return append(append([]expr.Any(nil), first...), more...)
	}
	const network, transport = expr.PayloadBaseNetworkHeader, expr.PayloadBaseTransportHeader
	for _, c := range []struct {
		term Term
		code []expr.Any
		set  []string // elements of the set that the code looks up
	}{
		{term: IIFName("eth0"), code: []expr.Any{load(expr.MetaKeyIIFNAME),
			is([]byte("eth0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))}},
		{term: NotOIFName("veth*"), code: []expr.Any{load(expr.MetaKeyOIFNAME), not([]byte("veth"))}},
		{term: OIFName("veth*"), code: []expr.Any{load(expr.MetaKeyOIFNAME), is([]byte("veth"))}},
		{term: IIFGroup(72), code: []expr.Any{load(expr.MetaKeyIIFGROUP), is(four(72))}},
		{term: OIFGroup(72), code: []expr.Any{load(expr.MetaKeyOIFGROUP), is(four(72))}},
		{term: SAddr(prefixes("10.0.0.1/32")...), code: []expr.Any{load(expr.MetaKeyNFPROTO),
			is([]byte{unix.NFPROTO_IPV4}), header(network, 12, 4),
			bits([]byte{255, 255, 255, 255}, make([]byte, 4)), is([]byte{10, 0, 0, 1})}},
		{term: NotDAddr(prefixes("fd00:1::5/63")...), code: []expr.Any{load(expr.MetaKeyNFPROTO),
			is([]byte{unix.NFPROTO_IPV6}), header(network, 24, 16),
			bits([]byte{255, 255, 255, 255, 255, 255, 255, 254, 15: 0}, make([]byte, 16)),
			not([]byte{0xfd, 0, 0, 1, 15: 0})}},
		{term: NotSAddr(prefixes("10.2.0.0/16", "255.0.0.0/8")...),
			code: []expr.Any{load(expr.MetaKeyNFPROTO), is([]byte{unix.NFPROTO_IPV4}), header(network, 12, 4),
				&expr.Lookup{SourceRegister: 1, Invert: true}}, set: []string{"10.2.0.0", "10.3.0.0", "255.0.0.0"}},
		{term: DAddr(prefixes("fd00::/64", "fd00:1::/64")...), code: []expr.Any{load(expr.MetaKeyNFPROTO),
			is([]byte{unix.NFPROTO_IPV6}), header(network, 24, 16),
			&expr.Lookup{SourceRegister: 1}}, set: []string{"fd00::", "fd00:0:0:1::", "fd00:1::", "fd00:1:0:1::"}},
		{term: NextHop(addr("169.254.72.1")), code: []expr.Any{&expr.Rt{Register: 1, Key: expr.RtNexthop4},
			is([]byte{169, 254, 72, 1})}},
		{term: NextHop(addr("fe80::72")), code: []expr.Any{&expr.Rt{Register: 1, Key: expr.RtNexthop6},
			is([]byte{0xfe, 0x80, 15: 0x72})}},
		{term: L4Proto("tcp"), code: tcp},
		{term: L4Proto("udp"), code: []expr.Any{load(expr.MetaKeyL4PROTO), is([]byte{17})}},
		{term: L4Proto("sctp"), code: []expr.Any{load(expr.MetaKeyL4PROTO), is([]byte{132})}},
		{term: L4Proto("icmp"), code: []expr.Any{load(expr.MetaKeyL4PROTO), is([]byte{1})}},
		{term: L4Proto("icmpv6"), code: []expr.Any{load(expr.MetaKeyL4PROTO), is([]byte{58})}},
		{term: L4Proto("4"), code: []expr.Any{load(expr.MetaKeyL4PROTO), is([]byte{4})}},
		{term: L4Proto("41"), code: []expr.Any{load(expr.MetaKeyL4PROTO), is([]byte{41})}},
		{term: DPort("tcp", 80, 80), code: then(tcp, header(transport, 2, 2), is(two(80)))},
		{term: DPort("tcp", 30000, 32767), code: then(tcp, header(transport, 2, 2),
			&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: two(30000), ToData: two(32767)})},
		{term: NoRouteBack(), code: []expr.Any{&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, FlagPRESENT: true,
			ResultOIF: true}, is(make([]byte, 4))}},
		{term: NoRouteBackByMark(), code: []expr.Any{&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true,
			FlagMARK: true, FlagPRESENT: true, ResultOIF: true}, is(make([]byte, 4))}},
		{term: RouteBackByMark(), code: []expr.Any{&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true,
			FlagMARK: true, FlagPRESENT: true, ResultOIF: true}, is(four(1))}},
		{term: ToLocal(), code: []expr.Any{&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
			is(four(unix.RTN_LOCAL))}},
		{term: NotToLocal(), code: []expr.Any{&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
			not(four(unix.RTN_LOCAL))}},
		{term: CTState("new", "invalid"), code: []expr.Any{track(expr.CtKeySTATE),
			bits(four(expr.CtStateBitNEW|expr.CtStateBitINVALID), four(0)), not(four(0))}},
		{term: CTState("established", "related", "untracked"), code: []expr.Any{track(expr.CtKeySTATE),
			bits(four(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED|expr.CtStateBitUNTRACKED), four(0)),
			not(four(0))}},
		{term: CTReply(), code: []expr.Any{track(expr.CtKeyDIRECTION), is([]byte{1})}},
		{term: CTOriginal(), code: []expr.Any{track(expr.CtKeyDIRECTION), is([]byte{0})}},
		{term: CTStatusDNAT(), code: []expr.Any{track(expr.CtKeySTATUS), bits(four(32), four(0)), not(four(0))}},
		{term: CTStatusSNAT(), code: []expr.Any{track(expr.CtKeySTATUS), bits(four(16), four(0)), not(four(0))}},
		{term: CTMark(0x2000), code: []expr.Any{track(expr.CtKeyMARK), bits(four(0x2000), four(0)), is(four(0x2000))}},
		{term: CTUnmarked(0x2000), code: []expr.Any{track(expr.CtKeyMARK), bits(four(0x2000), four(0)), is(four(0))}},
		{term: SetCTMark(0x2000), code: []expr.Any{track(expr.CtKeyMARK), bits(four(0xffffdfff), four(0x2000)),
			&expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true}}},
		{term: SetMark(0x2000), code: []expr.Any{load(expr.MetaKeyMARK), bits(four(0xffffdfff), four(0x2000)),
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}}},
		{term: IIFRouted(), code: []expr.Any{load(expr.MetaKeyIIFGROUP), bits(four(0xff000000), four(0)),
			is(four(76 << 24))}},
		{term: OIFRouted(), code: []expr.Any{load(expr.MetaKeyOIFGROUP), bits(four(0xff000000), four(0)),
			is(four(76 << 24))}},
		{term: SetMarkBits(0x1a0, 0x1fe0), code: []expr.Any{load(expr.MetaKeyMARK),
			bits(four(0xffffe01f), four(0x1a0)),
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}}},
		{term: SetARPSender(addr("10.0.1.10")), code: []expr.Any{into(1, []byte{10, 0, 1, 10}),
			&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: network, Offset: 14, Len: 4}}},
		{term: Marked(0x2000), code: []expr.Any{load(expr.MetaKeyMARK), bits(four(0x2000), four(0)), is(four(0x2000))}},
		{term: Count(), code: []expr.Any{&expr.Counter{}}},
		{term: Drop(), code: []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}},
		{term: Accept(), code: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}},
		{term: Reset(), code: []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}},
		{term: Masquerade(), code: []expr.Any{&expr.Masq{FullyRandom: true}}},
		{term: SNAT(addr("10.0.9.10")), code: []expr.Any{into(1, []byte{10, 0, 9, 10}),
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, FullyRandom: true}}},
		{term: SNAT(addr("fd00::10")), code: []expr.Any{into(1, []byte{0xfd, 15: 0x10}),
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: 1, FullyRandom: true}}},
		{term: SNATWithin(addr("10.0.9.10"), 1024, 49151), code: []expr.Any{into(1, []byte{10, 0, 9, 10}),
			into(2, two(1024)), into(3, two(49151)),
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2,
				RegProtoMax: 3, Specified: true, FullyRandom: true}}},
		{term: SNATPorts(47104, 65535), code: []expr.Any{into(1, two(47104)), into(2, two(65535)),
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_INET, RegProtoMin: 1, RegProtoMax: 2,
				Specified: true}}},
		{term: DNAT(addrPort("10.0.2.20:8080")), code: []expr.Any{into(1, []byte{10, 0, 2, 20}), into(2, two(8080)),
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2}}},
		{term: DNAT(addrPort("[fd00:2::20]:53")), code: []expr.Any{into(1, []byte{0xfd, 0, 0, 2, 15: 0x20}),
			into(2, two(53)),
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: 1, RegProtoMin: 2}}},
		{term: Notrack(), code: []expr.Any{&expr.Notrack{}}},
		{term: ClampMSS(), code: then(tcp, header(transport, 13, 1), bits([]byte{2}, []byte{0}), not([]byte{0}),
			&expr.Rt{Register: 1, Key: expr.RtTCPMSS},
			&expr.Byteorder{Op: expr.ByteorderHton, SourceRegister: 1, DestRegister: 1, Len: 2, Size: 2},
			&expr.Exthdr{SourceRegister: 1, Type: 2, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt})},
	} {
		ours := &transaction{family: unix.NFPROTO_INET, table: "words"}
		code, err := c.term.code(ours)
		if err != nil {
			t.Fatal(err)
		}
		ours.addRule("chain", "comment", code)
		theirs := sent(t, func(conn *nftables.Conn) {
			table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "words"}
			if c.set != nil {
				at := c.code[len(c.code)-1].(*expr.Lookup)
				at.SetName, at.SetID = set(t, conn, table, c.set)
			}
			conn.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: "chain"}, Exprs: c.code,
				UserData: userdata.AppendString(nil, userdata.TypeComment, "comment")})
		})
		if d := cmp.Diff(theirs, lines(t, ours)); d != "" {
			t.Errorf("%s: -package nftables +ours\n%s", c.term.text, d)
		}
	}
}

// set adds a set of intervals with the number 1. For each interval, addrs has two addresses: the first address of the
// interval, and the first address after the interval.
func set(t *testing.T, c *nftables.Conn, table *nftables.Table, addrs []string) (name string, number uint32) {
	t.Helper()
	s := &nftables.Set{Table: table, Name: "__set%d", ID: 1, Anonymous: true, Constant: true, Interval: true,
		KeyType: nftables.TypeIPAddr}
	var all []nftables.SetElement
	for i, a := range addrs {
		key := netip.MustParseAddr(a).AsSlice()
		if len(key) == 16 {
			s.KeyType = nftables.TypeIP6Addr
		}
		all = append(all, nftables.SetElement{Key: key, IntervalEnd: i%2 == 1})
	}
	if err := c.AddSet(s, all); err != nil {
		t.Fatal(err)
	}
	return s.Name, s.ID
}

// TestTransactions compares the messages about tables and chains with those of package nftables.
func TestTransactions(t *testing.T) {
	table := Table{Family: "ip6", Name: "table", Chains: []Chain{
		{Name: "first", Type: "filter", Hook: "forward", Priority: -150, Policy: "drop",
			Rules: []NFRule{{Count(), Drop()}}},
		{Name: "second", Type: "nat", Hook: "postrouting", Priority: 100, Rules: []NFRule{{Masquerade()}, {Accept()}}},
	}}
	theirs := &nftables.Table{Family: nftables.TableFamilyIPv6, Name: "table"}
	drop := nftables.ChainPolicyDrop
	accept := nftables.ChainPolicyAccept
	for _, c := range []struct {
		name   string
		ours   func(*transaction)
		theirs func(*nftables.Conn)
	}{
		{"create", func(x *transaction) { x.addTableRequest(unix.NFT_MSG_NEWTABLE, addNew) },
			func(c *nftables.Conn) { c.CreateTable(theirs) }},
		{"add", func(x *transaction) { x.addTableRequest(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE) },
			func(c *nftables.Conn) { c.AddTable(theirs) }},
		{"delete", func(x *transaction) { x.addTableRequest(unix.NFT_MSG_DELTABLE, 0) },
			func(c *nftables.Conn) { c.DelTable(theirs) }},
		{"seal", func(x *transaction) {
			x.addChain("rules_0")
		}, func(c *nftables.Conn) { c.AddChain(&nftables.Chain{Table: theirs, Name: "rules_0"}) }},
		{"chains", func(x *transaction) {
			if err := errors.Join(table.Chains[0].add(x), table.Chains[1].add(x)); err != nil {
				t.Fatal(err)
			}
		}, func(c *nftables.Conn) {
			rule := func(k *nftables.Chain, print ruleFingerprint, code ...expr.Any) {
				c.AddRule(&nftables.Rule{Table: theirs, Chain: k, Exprs: code,
					UserData: userdata.AppendString(nil, userdata.TypeComment, print.comment)})
			}
			k := c.AddChain(&nftables.Chain{Table: theirs, Name: "first", Type: nftables.ChainTypeFilter,
				Hooknum:  nftables.ChainHookForward,
				Priority: nftables.ChainPriorityMangle, Policy: &drop})
			rule(k, table.Chains[0].fingerprints()[0], &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
			k = c.AddChain(&nftables.Chain{Table: theirs, Name: "second", Type: nftables.ChainTypeNAT,
				Hooknum:  nftables.ChainHookPostrouting,
				Priority: nftables.ChainPriorityNATSource, Policy: &accept})
			rule(k, table.Chains[1].fingerprints()[0], &expr.Masq{FullyRandom: true})
			rule(k, table.Chains[1].fingerprints()[1], &expr.Verdict{Kind: expr.VerdictAccept})
		}},
	} {
		x, err := table.newTransaction()
		if err != nil {
			t.Fatal(err)
		}
		c.ours(x)
		if d := cmp.Diff(sent(t, c.theirs), lines(t, x)); d != "" {
			t.Errorf("%s: -package nftables +ours\n%s", c.name, d)
		}
	}
}

// TestComment finds a rule's comment among other user data. In malformed user data, it finds none.
func TestComment(t *testing.T) {
	for _, c := range []struct {
		userdata []byte
		want     string
	}{
		{userdata.AppendString(nil, userdata.TypeComment, "hello"), "hello"},
		{userdata.AppendString(userdata.AppendUint32(nil, userdata.TypeEbtablesPolicy, 7), userdata.TypeComment,
			"hello"), "hello"},
		{userdata.AppendUint32(nil, userdata.TypeEbtablesPolicy, 7), ""},
		{nil, ""}, {[]byte{0}, ""}, {[]byte{0, 9, 'h'}, ""},
	} {
		if got := decodeComment(c.userdata); got != c.want {
			t.Errorf("%q: %q, want %q", c.userdata, got, c.want)
		}
	}
	if d := cmp.Diff(userdata.AppendString(nil, userdata.TypeComment, "hello"), encodeComment("hello")); d != "" {
		t.Error(d)
	}
}

// sent returns the messages that package nftables sends.
func sent(t *testing.T, what func(*nftables.Conn)) (all []string) {
	t.Helper()
	enough := errors.New("enough")
	c, err := nftables.New(nftables.WithTestDial(func(msgs []netlink.Message) ([]netlink.Message, error) {
		for _, m := range msgs {
			// Unlike this package, package nftables asks for acknowledgements and echoes, omits NLM_F_CREATE, and marks
			// this attribute as nested.
			flags := m.Header.Flags &^ (netlink.Acknowledge | netlink.Echo)
			if flags&netlink.Excl != 0 {
				flags |= netlink.Create
			}
			const flag = "\x00\x00\x00\x01"
			data := bytes.ReplaceAll(m.Data, []byte("\x08\x00\x03\x80"+flag), []byte("\x08\x00\x03\x00"+flag))
			all = append(all, line(uint16(m.Header.Type), uint16(flags), data))
		}
		return nil, enough
	}))
	if err != nil {
		t.Fatal(err)
	}
	if what(c); !errors.Is(c.Flush(), enough) {
		t.Fatal(err)
	}
	return all
}

// lines returns the messages that we send.
func lines(t *testing.T, x *transaction) (all []string) {
	t.Helper()
	for b, seq := x.encodeMessages(7), uint32(7); len(b) > 0; seq++ {
		m, rest, err := cutMessage(b)
		if err != nil {
			t.Fatal(err)
		}
		if m.seq != seq {
			t.Errorf("message %d has the number %d, want %d", len(all), m.seq, seq)
		}
		all, b = append(all, line(m.typ, m.flags, m.data)), rest
	}
	return all
}

func line(typ, flags uint16, data []byte) string {
	return fmt.Sprintf("type %x flags %x\n%s", typ, flags, hex.Dump(data))
}
