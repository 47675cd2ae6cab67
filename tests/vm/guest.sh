#!/bin/bash
# The checks of `make test-vm`, inside the virtual machine: real kernel, real
# libibverbs, a software adapter for each of the machines a, b, c and d
# (rdma-vm's README says how they are laid out: RDMA has links of its own, so
# what crosses veth_* outside of the machines is RDMA and nothing else).
#
#   guest.sh [PATTERN...]  the checks whose names match a shell pattern
#
# BRIDGE names the bridge under test: verbs, or tcp to try the suite itself.
# Prints "vm: ok NAME", "vm: not ok NAME" or "vm: skip NAME", and "vm: end".
set -u
cd "$(dirname "$0")"
BRIDGE=${BRIDGE:-verbs}
DRIVER=${RDMA_VM_DRIVER:-rxe}
patterns=("${@:-*}")
logs=/tmp/logs
mtu=1024 # bytes of a packet, at most

# ---- jobs ----------------------------------------------------------------

job=0
# start "an an ba" [NAME=VALUE...] COMMAND...: a rank each: its machine, and
# n or a for its vendor.
start() {
  local places=$1 rank=0 place machine vendor sets=()
  shift
  while [[ $1 == *=* ]]; do
    sets+=("$1")
    shift
  done
  job=$((job + 1))
  rm -rf "$logs"
  mkdir -p "$logs"
  pids=()
  for place in $places; do
    machine=${place:0:1}
    vendor=nvidia
    [ "${place:1:1}" = a ] && vendor=amd
    on "$machine" env RANK=$rank WORLD_SIZE="$(wc -w <<<"$places")" \
      MASTER_ADDR=10.77.0.1 MASTER_PORT=$((29500 + job)) \
      GPUBRIDGE_VENDOR=$vendor GPUBRIDGE_BRIDGE="$BRIDGE" \
      ${sets[@]+"${sets[@]}"} LOG="$logs/$rank" \
      sh -c 'echo $$ >"$LOG.pid"; exec "$@"' rank "$@" \
      >"$logs/$rank" 2>&1 </dev/null &
    pids+=($!)
    rank=$((rank + 1))
  done
}

# finish SECONDS: waits for all ranks; their statuses are in `ended`, 124 for
# one that had to be killed.
finish() {
  local end=$((SECONDS + $1)) i status
  ended=()
  for i in "${!pids[@]}"; do
    while kill -0 "${pids[$i]}" 2>/dev/null && [ $SECONDS -lt $end ]; do
      sleep 0.1
    done
    if kill -0 "${pids[$i]}" 2>/dev/null; then
      kill -9 "$(cat "$logs/$i.pid")" "${pids[$i]}" 2>/dev/null
      wait "${pids[$i]}" 2>/dev/null
      ended+=(124)
    else
      wait "${pids[$i]}" 2>/dev/null
      status=$?
      ended+=($status)
    fi
  done
}

# run SECONDS PLACES ...: all ranks must end well.
run() {
  local seconds=$1 status
  shift
  start "$@"
  finish "$seconds"
  for status in "${ended[@]}"; do
    [ "$status" = 0 ] || { say "ranks ended with ${ended[*]}"; return 1; }
  done
}

say() { echo "  $*"; }

# until_line RANK TEXT SECONDS: the rank's output has such a line.
until_line() {
  local end=$((SECONDS + $3))
  until grep -q "$2" "$logs/$1" 2>/dev/null; do
    [ $SECONDS -lt $end ] || { say "rank $1 did not say \"$2\""; return 1; }
    sleep 0.05
  done
}

# fails_saying TEXT RANK...: these ranks ended with an error that has the words
# (an extended regular expression, in any case), and no rank with success.
fails_saying() {
  local text=$1 rank bad=0
  shift
  for rank in "$@"; do
    [ "${ended[$rank]}" = 1 ] ||
      { say "rank $rank ended with ${ended[$rank]}, not with an error"; bad=1; }
    grep -qiE "$text" "$logs/$rank" ||
      { say "rank $rank does not say \"$text\""; bad=1; }
  done
  say "said: $(grep -hiE "$text" "$logs/$1" | tail -n 1 | cut -c1-300)"
  return $bad
}

# ---- the gate ------------------------------------------------------------

packets() { # of RDMA that the machine's adapter has sent
  rdma stat show link "rxe_$1/1" | grep -o 'sent_pkts [0-9]*' | cut -d' ' -f2
}
wire() { cat "/sys/class/net/veth_$1/statistics/tx_bytes"; }
counters() { echo "$(packets "$1") $(wire "$1")"; }

# gate BYTES MACHINE COMMAND...: the command ends well, and the machine's
# adapter sent so much meanwhile, by its own count and by the link's. 3: it
# ended well, but the bytes went another way.
gate() {
  local bytes=$1 machine=$2 before after sent crossed
  shift 2
  read -ra before <<<"$(counters "$machine")"
  "$@" || return 1
  read -ra after <<<"$(counters "$machine")"
  sent=$(((after[0] - before[0]) * mtu))
  crossed=$((after[1] - before[1]))
  say "$machine: at most $sent bytes in packets, $crossed on the link;" \
    "$bytes wanted"
  [ "$sent" -ge "$bytes" ] && [ "$crossed" -ge "$bytes" ] || return 3
}
refused_by_gate() {
  gate "$@"
  local status=$?
  [ $status = 3 ] || { say "the gate gave $status, not 3"; return 1; }
}

rdma_only() {
  [ "$BRIDGE" = verbs ] && [ "$DRIVER" = rxe ] && return 0
  say "of the bridge verbs over rxe"
  return 77
}

pingpong() {
  on b timeout 60 ibv_rc_pingpong -d rxe_b -g "$RDMA_VM_GID" -e -n 64 \
    -s 65536 >/tmp/pong 2>&1 &
  await-port b 18515 || return 1
  on a timeout 60 ibv_rc_pingpong -d rxe_a -g "$RDMA_VM_GID" -e -n 64 \
    -s 65536 10.77.0.2 >/tmp/ping 2>&1 && wait $!
}

MIB=1048576
check_gate_sees_rdma() { # 64 times 64 KiB each way, by a program not ours
  [ "$DRIVER" = rxe ] || return 77
  gate $((4 * MIB)) a pingpong
}
check_gate_refuses_tcp() {
  [ "$DRIVER" = rxe ] || return 77
  refused_by_gate $((8 * MIB)) a \
    run 60 "an ba" GPUBRIDGE_BRIDGE=tcp ./vm_job send 8 1
}
# The bridge is named, but both ranks are of one island: its own links carry
# the collective.
check_gate_refuses_bytes_elsewhere() {
  [ "$DRIVER" = rxe ] || return 77
  refused_by_gate $((8 * MIB)) a \
    run 60 "an bn" GPUBRIDGE_ISLAND=one GPUBRIDGE_POLICY=native-only \
    ./vm_job sum 8
}
check_gate_message() {
  rdma_only || return
  gate $((16 * MIB)) a run 90 "an ba" ./vm_job send 16 1
}
check_gate_sum() { # each side sends half at least
  rdma_only || return
  gate $((4 * MIB)) a run 90 "an ba" ./vm_job sum 8 &&
    gate $((4 * MIB)) b run 90 "an ba" ./vm_job sum 8
}
check_gate_four_ranks() {
  rdma_only || return
  gate $((8 * MIB)) a run 90 "an an ba ba" ./vm_job send 8 1
}

# ---- right numbers -------------------------------------------------------

# direct and native-only are for one host, or one island.
policies="reduce-bridge-broadcast sharded-bridge auto"
# shellcheck disable=SC2086
check_same_as_flat_2() { run 90 "an ba" ./vm_job same $policies; }
# shellcheck disable=SC2086
check_same_as_flat_3() { run 90 "an an ba" ./vm_job same $policies; }
# shellcheck disable=SC2086
check_same_as_flat_4() { run 120 "an an ba ba" ./vm_job same $policies; }
# shellcheck disable=SC2086
check_same_as_flat_4_machines() {
  run 120 "an bn ca da" ./vm_job same $policies
}
check_every_type_2() {
  run 120 "an ba" ./gpubridge check --count 67
}
check_mixed_2() { run 90 "an ba" ./vm_job mixed 4; }
check_mixed_4() { run 120 "an bn ca da" ./vm_job mixed 2; }
check_small_10000() { run 120 "an ba" ./vm_job small 10000; }
check_message_256_mib() { run 150 "an ba" ./vm_job send 256 1; }
check_sum_64_mib() { run 120 "an ba" ./vm_job sum 64; }
# examples/all_reduce.c; it prints which bridge it went over.
check_example_4() {
  local rank
  run 60 "an bn ca da" ./vm_example || return
  for rank in 0 1 2 3; do
    grep -q "the sum is 10 over bridge $BRIDGE" "$logs/$rank" ||
      { say "rank $rank does not say the sum and the bridge"; return 1; }
  done
}
check_torture_3() { run 90 "an an ba" ./torture_job 2 20000; }

# ---- a bad wire ----------------------------------------------------------

# disturb MACHINE ARGUMENTS...: netem on the link that the bridge uses.
disturb() {
  local machine=$1
  shift
  local options=()
  [ "$1" = -s ] && options=(-s) && shift
  if [ "$BRIDGE" = verbs ] && [ "$DRIVER" = rxe ]; then
    tc ${options[@]+"${options[@]}"} qdisc "$@"
  else
    on "$machine" tc ${options[@]+"${options[@]}"} qdisc "$@"
  fi
}
with_netem() {
  local status machine
  for machine in a b; do
    disturb $machine add dev veth_$machine root netem "$@" || return 1
  done
  run 120 "an ba" ./torture_job 1 60000
  status=$?
  disturb a -s show dev veth_a >/tmp/netem
  rdma_only >/dev/null && rdma stat show link rxe_b/1
  for machine in a b; do disturb $machine del dev veth_$machine root; done
  return $status
}
check_loss() {
  with_netem loss 0.5% || return
  grep -q 'dropped [1-9]' /tmp/netem || { say "nothing was lost"; return 1; }
}
check_reordering() { with_netem delay 1ms reorder 1%; }
check_doubling() { with_netem duplicate 2%; }

cut_link() {
  if [ "$BRIDGE" = verbs ] && [ "$DRIVER" = rxe ]; then
    command wire b "$1"
  else
    on b ip link set veth_b "$1"
  fi
}
# flowing BYTES: waits until so much more has left machine a.
flowing() {
  local end=$((SECONDS + 60)) from now
  from=$(left_a)
  until now=$(left_a) && [ $((now - from)) -ge "$1" ]; do
    [ $SECONDS -lt $end ] || { say "no bytes flow"; return 1; }
    sleep 0.1
  done
}
left_a() {
  if [ "$BRIDGE" = verbs ] && [ "$DRIVER" = rxe ]; then
    wire a
  else
    on a cat /sys/class/net/veth_a/statistics/tx_bytes
  fi
}

# cut_during BYTES COMMAND...: once these have flowed. No group is opened meanwhile, which would look at the
# ports anew.
cut_during() {
  local status=0 bytes=$1
  shift
  start "an ba" "$@"
  flowing "$bytes" || status=1
  cut_link down
  finish 90
  cut_link up
  fails_saying 'failed .*rank [01]' 0 1 || status=1
  return $status
}
check_link_cut() { cut_during $((4 * MIB)) ./vm_job mixed 5000; }
check_link_cut_in_large_message() { cut_during $((16 * MIB)) ./vm_job send 256 4; }
check_works_after_the_cut() { run 60 "an ba" ./torture_job 1 20000; }

# ---- a killed peer -------------------------------------------------------

# killed_at TEXT COMMAND...: rank 1 of 3 is killed once it has said so; the
# others tell of it within 20 s.
killed_at() {
  local text=$1 status=0
  shift
  start "an ba ba" "$@"
  if [ -n "$text" ]; then
    until_line 1 "$text" 60 || status=1
  else
    until [ -s $logs/1.pid ]; do sleep 0.02; done
  fi
  kill -9 "$(cat $logs/1.pid)"
  finish 30
  fails_saying 'rank 1|failed -1' 0 2 || status=1
  return $status
}
check_killed_while_joining() { killed_at '' ./torture_job 100 10000; }
check_killed_when_ready() { killed_at '^ready' ./torture_job 100 10000; }
check_killed_in_messages() { # the ring comes next
  killed_at '^ok .* group_close' ./torture_job 100 10000
}
check_killed_in_collectives() {
  killed_at '^ok .* all_reduce' ./torture_job 100 10000
}
check_killed_in_async() { killed_at '^ok .* broadcast' ./torture_job 100 10000; }
check_killed_in_large_message() {
  local status=0
  start "an ba" ./vm_job send 256 1
  flowing $((16 * MIB)) || status=1
  kill -9 "$(cat $logs/1.pid)"
  finish 30
  fails_saying 'rank 1' 0 || status=1
  return $status
}

# ---- bad settings --------------------------------------------------------

check_memlock_too_small() {
  rdma_only || return
  start "an ba" ./vm_job limited 65536 ./vm_job sum 1
  finish 60
  fails_saying 'memlock|ulimit -l' 0 1
}
check_memlock_for_the_ring_only() {
  rdma_only || return
  run 90 "an ba" ./vm_job limited $((16 * MIB)) ./vm_job send 64 1
}
check_gid_index_not_there() {
  rdma_only || return
  start "an ba" GPUBRIDGE_VERBS_GID_INDEX=200 ./vm_job sum 1
  finish 60
  fails_saying 'gid' 0 1
}
check_gid_index_of_ipv6() {
  rdma_only || return
  run 60 "an ba" GPUBRIDGE_VERBS_GID_INDEX="$RDMA_VM_GID6" ./vm_job sum 1
}
check_device_not_there() {
  rdma_only || return
  start "an ba" GPUBRIDGE_VERBS_DEVICE=mlx5_7 ./vm_job sum 1
  finish 60
  fails_saying 'mlx5_7' 0 1
}
check_port_down() {
  local status=0
  rdma_only || return
  command wire b down
  start "an ba" ./vm_job sum 1
  finish 90
  command wire b up
  fails_saying 'port|down|rxe_b' 0 1 || status=1
  return $status
}

# iWARP connects only by librdmacm, which the bridge does not use: it says so.
check_siw_is_refused_in_words() {
  [ "$DRIVER" = siw ] && [ "$BRIDGE" = verbs ] || return 77
  start "an ba" ./vm_job sum 1
  finish 60
  fails_saying 'siw|iwarp' 0 1
}

# ---- one after another ---------------------------------------------------

wanted() {
  local pattern
  for pattern in "${patterns[@]}"; do
    # shellcheck disable=SC2053
    [[ $1 == $pattern ]] && return 0
  done
  return 1
}

names=$(grep -o '^check_[a-z0-9_]*()' guest.sh | tr -d '()')
for name in $names; do
  short=${name#check_}
  wanted "$short" || continue
  begun=$SECONDS
  $name >/tmp/said 2>&1
  status=$?
  took="$((SECONDS - begun)) s"
  case $status in
  0)
    echo "vm: ok $short ($took)"
    grep -E '^  (said:|.* wanted)' /tmp/said
    ;;
  77) echo "vm: skip $short: $(tail -n 1 /tmp/said)" ;;
  *)
    echo "vm: not ok $short ($took)"
    cat /tmp/said
    for log in "$logs"/?; do
      [ -f "$log" ] && tail -n 4 "$log" | cut -c1-600 |
        sed "s/^/  [${log##*/}] /"
    done
    ;;
  esac
done
echo "vm: end"
