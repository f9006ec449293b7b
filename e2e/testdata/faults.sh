# The functions and variables of TestFaults. TestFaults also uses the commands of the shell of make sim.
conf=/etc/cni/net.d/10-cni-ipvlan-vpc-k8s.conflist
state=/run/cni-ipvlan-vpc-k8s
# shellcheck disable=SC2034 # faults_table_test.go uses it
bin=/opt/cni/bin
cp $conf /root/good.conflist

# veth: the node's end of the pair of the pod cart; table: the routing table of the pair's rule
veth() { ip -o link show group 72 | sed -n '/default\/cart/s/^[0-9]*: \([^@:]*\).*/\1/p'; }
table() { ip rule show iif "$(veth)" | sed 's/.*lookup \([0-9]*\).*/\1/'; }

# addr POD, eni POD, attachment POD: the pod's address, the address's ENI, and the ENI's attachment; by default for the pod cart
addr() { cni-tool status | awk -v pod="default/${1:-cart}" '$3 == pod {print $1}'; }
eni() { cni-tool status | awk -v pod="default/${1:-cart}" '$3 == pod {print $5}'; }
attachment() { ec2 DescribeNetworkInterfaces NetworkInterfaceId.1="$(eni "${1:-}")" | grep -o 'eni-attach-[0-9a-f]*' | head -1; }

# ec2 ACTION KEY=VALUE...: another program calls EC2.
ec2() {
	local args=(-d "Action=$1" -d Version=2016-11-15)
	shift
	for arg; do args+=(-d "$arg"); done
	curl -sS "$AWS_ENDPOINT_URL_EC2" "${args[@]}"
}

# service: add the rule that kube-proxy would write for a Service whose endpoint is the pod web. The pod answers with the caller's address.
service() {
	nft list table ip service >/dev/null 2>&1 || nft -f - <<-END
		table ip service {
			chain pre { type nat hook prerouting priority dstnat; ip daddr 172.20.0.10 udp dport 80 dnat to $(getent hosts web | cut -d' ' -f1):8080; }
		}
	END
}

# works: print the destinations that the pod cart does not reach, one word a line.
works() {
	service
	for at in node=10.0.0.4 VPC=web internet=internet; do
		ip netns exec cart ping -c1 -W3 "${at#*=}" >/dev/null 2>&1 || echo "${at%=*}" &
		probes+=($!)
	done
	ip netns exec cart timeout 3 bash -c 'exec 3<>/dev/udp/172.20.0.10/80; echo >&3; head -c 15 <&3' 2>/dev/null | grep -qF "$(cat /root/cart):" || echo Services
	wait "${probes[@]}"
	probes=()
}

# renew POD: delete the pod, and make a new one, as its controller does.
renew() {
	if ip netns pids "$1" >/dev/null 2>&1; then pod del "$1" || ip netns del "$1"; fi
	pod add "$1" >"/root/$1"
}

# late: make the leases in the registry a year old.
late() { sed -i "s/\"since\":\"$(date +%Y)/\"since\":\"$(($(date +%Y) - 1))/g" $state/registry.json; }
