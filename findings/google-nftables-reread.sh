#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/google/nftables v0.3.0: a rule that GetRules reads and AddRule writes again is another rule, mostly without an error.
#
# A good guess: the library has types for these expressions (expr.Byteorder, expr.Dup, expr.Socket) and writes them. So it also reads them,
# or its error names what it cannot read. A verdict map that GetSets and GetSetElements read has its verdicts in VerdictData.
#
# What happens: the reader leaves out expressions that it does not know, without an error. nft(8) puts a byte order expression before a
# comparison of marks or users with a range, with > or with <. Without this expression, the kernel compares the bytes in reverse order:
# users 1000-2000 become other users. `dup` becomes an empty rule. A rule with a condition of a socket becomes a comparison without the
# socket, and a verdict. Linux 6.18 refuses such a rule. The expression of `ct original ip saddr` has a direction of one byte. The reader
# expects four bytes, and GetRules fails for the whole chain. A verdict map is read with a key of the type "verdict" and of 0 bytes. Its
# elements have no VerdictData: Val has the attributes of netlink. The script needs root, Go, and nft(8). nft 1.0.6 wrote the rules.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/reread\n\ngo 1.26\n\nrequire github.com/google/nftables v0.3.0\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"

	"github.com/google/nftables"
)

func main() {
	c, err := nftables.New()
	if err != nil {
		panic(err)
	}
	t := &nftables.Table{Name: "t", Family: nftables.TableFamilyIPv4}
	rules, err := c.GetRules(t, &nftables.Chain{Name: "a", Table: t})
	fmt.Printf("  %d rules (error: %v)", len(rules), err)
	for _, r := range rules {
		for _, e := range r.Exprs {
			fmt.Printf(" %T", e)
		}
		c.AddRule(&nftables.Rule{Table: t, Chain: &nftables.Chain{Name: "b", Table: t}, Exprs: r.Exprs})
	}
	fmt.Println("; written:", c.Flush())
	sets, _ := c.GetSets(t)
	for _, s := range sets {
		all, err := c.GetSetElements(s)
		fmt.Println("  map:", s.KeyType.Name, s.KeyType.Bytes, len(all), all[0].VerdictData, len(all[0].Val), err)
	}
}
EOF
go mod tidy >/dev/null 2>&1
go list -m github.com/google/nftables
go build -o probe .
cases() {
	for rule in 'meta skuid 1000-2000 accept' 'meta mark > 0x5 drop' 'dup to 192.0.2.1' \
		'socket transparent 1 accept' 'ct original ip saddr 192.0.2.1 accept'; do
		nft flush ruleset && nft -f - <<<$'table ip t {\nchain a {\n}\nchain b {\n}\n}' && nft -f - <<<"add rule ip t a $rule"
		echo "$rule" && ./probe && echo "  => $(nft list chain ip t b | sed -n '3s/\t*//p') ."
	done
	nft flush ruleset && nft -f - <<<$'table ip t {\nmap m {\ntype ipv4_addr : verdict\nelements = { 192.0.2.1 : drop }\n}\n}' && ./probe
}
export -f cases
unshare --net bash -euo pipefail -c cases | tee seen
diff - <(grep -v rules seen) <<'EOF'
meta skuid 1000-2000 accept
  => meta skuid 3892510720-3490119680 accept .
meta mark > 0x5 drop
  => meta mark > 0x05000000 drop .
dup to 192.0.2.1
  =>  .
socket transparent 1 accept
  => } .
ct original ip saddr 192.0.2.1 accept
  => } .
  map: verdict 0 1 <nil> 8 <nil>
EOF
grep -q 'attribute 3 is not a uint32' seen && grep -q 'written: .*no data available' seen
