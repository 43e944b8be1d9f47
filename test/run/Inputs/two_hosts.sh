#!/usr/bin/env bash
# Runs a command on the first of two hosts: namespaces with a name, an address and a wire of their own.
#
# usage: unshare --net --uts two_hosts.sh FOLDER COMMAND..    FOLDER/agent.sh starts what mpirun wants on the other host
set -e
folder=$1; shift
unshare --net --uts sleep 300 & other=$!
trap 'kill $other' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
hostname pp-first
nsenter -t $other --uts hostname pp-second
ip link set lo up
ip link add pp-wire-a type veth peer name pp-wire-b netns $other
ip addr add 10.77.0.1/24 dev pp-wire-a
ip link set pp-wire-a up
nsenter -t $other --net sh -c "ip link set lo up; ip addr add 10.77.0.2/24 dev pp-wire-b; ip link set pp-wire-b up"
cat > "$folder/agent.sh" <<END
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
shift
exec nsenter -t $other --net --uts bash -c "\$*"
END
chmod +x "$folder/agent.sh"
"$@"
