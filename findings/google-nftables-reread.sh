#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/google/nftables v0.3.0: a rule that GetRules reads and AddRule writes again is another rule, and mostly no error says so.
#
# A good guess: the library has types for these expressions (expr.Byteorder, expr.Dup, expr.Socket) and writes them. So it reads them,
# too, or says what it cannot read. A verdict map that GetSets and GetSetElements read has its verdicts in VerdictData.
#
# What happens: the reader leaves out expressions that it does not know, without a word. nft(8) puts a byte order expression before a
# range, and before a greater or less, of marks and users. Without it, the kernel compares the bytes backwards: users 1000-2000
# become other users. `dup` becomes an empty rule. A condition of a socket is read as a bare comparison and a verdict; Linux 6.18
# refuses that. A load of `ct original ip saddr` has a direction of one byte; the reader wants four, and GetRules fails for the whole
# chain. A verdict map has a key of the type "verdict" and 0 bytes, and its elements have no VerdictData: Val is attributes of netlink.
# It takes root, Go, and nft(8); the rules were written by 1.0.6.
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
