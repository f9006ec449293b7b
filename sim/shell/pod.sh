#!/bin/sh
# pod: add, check and delete the network of a pod, as a container runtime does.
#
# usage: pod add NAME               make a pod that answers at TCP port 8080, and print its addresses
#        pod exec NAME COMMAND...   run a command in the pod
#        pod check NAME             ask the plugins whether the network is as they have made it
#        pod del NAME               delete the pod
set -eu

usage() { sed -n '4,7s/^# //p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
verb=$1 name=$2
shift 2

# say COMMAND...: print the command, and run it.
say() { echo "+ $*" >&2; "$@"; }

# plugins VERB: run the chain, and print its changes of EC2; if the chain fails, print all of its messages.
plugins() {
	log=$(mktemp)
	# A runtime passes the name of the pod in this variable.
	export CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=$name"
	if say cnitool "$1" cni-ipvlan-vpc-k8s "/run/netns/$name" 2>"$log"; then
		sed -n 's/^+ .*/&/p; s/.* msg=\([A-Za-z]*\) .* eni=\([^ ]*\).*/EC2: \1 \2/p' "$log" >&2
	else
		cat "$log" >&2
		false
	fi
}

case $verb in
add)
	say ip netns add "$name"
	ip -n "$name" link set lo up
	result=$(plugins add) || { ip netns del "$name"; exit 1; }
	echo "$result" | sed -n 's|^ *"address": "\([0-9a-f.:]*\)/.*|\1|p' | while read -r addr; do
		echo "$addr"
		echo "$addr $name" >>/etc/hosts
	done
	{ setsid ip netns exec "$name" answer "$name" </dev/null 2>/dev/null & } | read -r _ # answer prints a line when it is ready
	;;
exec) exec ip netns exec "$name" "$@" ;;
check) plugins check ;;
del)
	ip netns pids "$name" | xargs -r kill || :
	plugins del
	sed -i "/ $name\$/d" /etc/hosts
	say ip netns del "$name"
	;;
*) usage ;;
esac
