#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/google/nftables v0.3.0: GetRules and GetSetElements, while another process changes the same chain or set.
#
# A good guess: a list is as the chain or the set was at one moment. If the kernel cannot give such a list, it says so. Then the call tries
# again, as nft(8) does, or returns an error. A rule or element that is there all the time is in each list, once.
#
# What happens: a list of more than one message can lack rules and elements that are there all the time, or have them twice. The kernel
# marks such a list as interrupted (NLM_F_DUMP_INTR). The package does not look at the mark, and returns no error. Here, 3000 rules and 3000
# elements stay; 50 others before and between them come and go. In each list of nft, all of them are there. A program that adds the rules
# which its list lacks then adds some rules a second time. A program that deletes the rules of its list leaves some rules. The script needs
# root, Go and nft(8).
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/list\n\ngo 1.26\n\nrequire github.com/google/nftables v0.3.0\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/nftables"
)

func main() {
	c, err := nftables.New()
	table := &nftables.Table{Name: "t", Family: nftables.TableFamilyINet}
	lacks, twice, failed := false, false, err != nil
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end) && !(lacks && twice); {
		found := map[string]int{} // by the comment or the address
		rules, err1 := c.GetRules(table, &nftables.Chain{Name: "c"})
		for _, r := range rules {
			found[strings.TrimRight(string(r.UserData[2:]), "\x00")]++
		}
		elements, err2 := c.GetSetElements(&nftables.Set{Table: table, Name: "s"})
		for _, e := range elements {
			found[fmt.Sprint(e.Key)]++
		}
		for i := range 3000 {
			n := found[fmt.Sprintf("stays %d", i)]
			if os.Args[1] == "elements" {
				n = found[fmt.Sprint([]byte{10, 0, byte(i / 250), byte(i % 250)})]
			}
			lacks, twice = lacks || n == 0, twice || n > 1
		}
		failed = failed || err1 != nil || err2 != nil
	}
	fmt.Printf("%s: lists that lack some: %t, that have some twice: %t, errors: %t\n", os.Args[1], lacks, twice, failed)
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/google/nftables
CGO_ENABLED=0 go build -o probe .
cases() {
	nft 'table inet t { set s { type ipv4_addr; }; chain c { }; }'
	for i in $(seq 0 2999); do echo "add rule inet t c counter comment \"stays $i\"; add element inet t s { 10.0.$((i / 250)).$((i % 250)) }"; done | nft -f -
	for i in $(seq 50); do echo "insert rule inet t c counter comment \"goes\"; add element inet t s { 10.1.0.$i }"; done >changes
	while [ ! -e stop ]; do # what is inserted gets a handle, by which it is deleted
		nft -f changes
		{ nft -a list chain inet t c | sed -n 's/.*"goes" # handle/delete rule inet t c handle/p' && sed -n 's/.*add element/delete element/p' changes; } | nft -f -
	done &
	./probe rules && ./probe elements
	for _ in 1 2 3; do echo "nft: $(nft list chain inet t c | grep -c stays) rules, $(nft list set inet t s | grep -oE '10\.0\.[0-9]+\.[0-9]+' | sort -u | wc -l) elements"; done
	touch stop && wait
}
export -f cases
unshare --net bash -euo pipefail -c cases | tee seen
diff - <(uniq seen) <<'EOF'
rules: lists that lack some: true, that have some twice: true, errors: false
elements: lists that lack some: true, that have some twice: true, errors: false
nft: 3000 rules, 3000 elements
EOF
