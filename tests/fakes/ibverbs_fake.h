/* fakes: libibverbs without an adapter, as
 * build/lib/fakes/rdma/libibverbs.so.1.
 *
 * Reliable-connected queue pairs between processes of one host, no privileges.
 * A thread for each open device is the adapter: it alone touches registered
 * memory, of its own process only; the "wire" is a pair of abstract sockets for
 * each connected pair of QPs, named by the QP number, so that nothing is left
 * behind by a process that is killed.
 *
 * As strict as the strictest of the real ones:
 *  - modify_qp refuses wrong transitions, missing and superfluous attributes,
 *    values out of range, a GID that is not in the table;
 *  - keys, ranges, access flags and protection domains are checked when they
 *    are used; a violation breaks the QP as on real adapters;
 *  - a send queue's slot is free again only when the completion of its, or a
 *    later, work request was polled; an unsignalled one has none;
 *  - an event comes only for completions that arrive after the CQ was armed;
 *  - of a failed completion, only wr_id, status and qp_num can be read: the
 *    rest is noise;
 *  - a wrong PSN, QP number or GID on either side: silence, and RETRY_EXC_ERR;
 *  - destroying what is in use: EBUSY.
 * tests/vm/vm_verbs.c has the same test run over a kernel's rxe. That differs:
 * it takes retry_cnt 8, more work than was asked for, and the rkey as an lkey;
 * says REM_OP_ERR for a receive that is too short, flushes the work with
 * the wrong lkey too, tells of no access violation by an event, and answers
 * ETIMEDOUT when RTR names a GID that no neighbour has.
 * Not there: UD, UC, SRQ, atomics, memory windows, alternate paths.
 *
 * Misuse that real adapters do not notice, or that hangs, is said on stderr and
 * the process aborts: a completion queue that overflows, deregistering memory
 * that posted work uses, changing what is posted to be sent, events not
 * acknowledged when their object is destroyed. What is left when a process
 * calls exit(0) is listed, and the process ends with status 98.
 *
 * Settings are environment variables, read when the library is first called:
 *   FAKE_VERBS_DEVICES  devices, separated by ";": NAME[,KEY=VALUE...] with
 *                       ports=1, state=active|init|armed|down, link=eth|ib,
 *                       mtu=4096, lid=N (ib: a hash of the process by itself),
 *                       gidN=ADDRESS (eth: 0 fe80::1 and 1 ::ffff:127.0.0.1 by
 *                       itself; N to 15; "none" empties one), wr=4096 (work
 *                       requests of a queue), cqe=65536, inline=256, sge=8,
 *                       qps=1024, mr=BYTES (largest region), sysfs=FOLDER (what
 *                       stands in ibdev_path). Empty: no devices.
 *                       By itself "fake0"
 *   FAKE_VERBS_MEMLOCK  bytes that can be registered at a time; 0: no bound
 *   FAKE_VERBS_DMABUF   0: reg_dmabuf_mr says EOPNOTSUPP
 *   FAKE_VERBS_SLOW_US  rests after each message that arrives
 *   FAKE_VERBS_LEAKS    0: nothing is said at exit
 *   FAKE_VERBS_FAIL     "function:n:errno[,...]": the n-th call of a function
 *                       (ibv_reg_mr) fails
 *   FAKE_VERBS_FAULT    "what:kind:n:value:rank[,...]": something happens at
 *                       the n-th (from 1) work request of a kind (send, write,
 *                       imm: WRITE_WITH_IMM, read, any) that this process
 *                       hands to the wire; rank: $RANK of the process, or "*".
 *     status    it completes with that status, the QP breaks
 *     lose      the peer's adapter acknowledges it and forgets it
 *     delay     its completion, and those behind it, come `value` ms late
 *     down      the port goes down; up again after `value` ms, 0: never
 *     qp        the QP breaks with IBV_EVENT_QP_FATAL
 *     device    all do, with IBV_EVENT_DEVICE_FATAL
 *     kill      the process is killed */
#ifndef FAKES_IBVERBS_FAKE_H
#define FAKES_IBVERBS_FAKE_H

#include <stdint.h>

/* What happened in this process so far; find it with dlsym(RTLD_DEFAULT). */
typedef struct fake_verbs_counts {
  uint64_t sends, writes, imms, reads; /* completed well */
  uint64_t bytes_sent;                 /* of them */
  uint64_t bytes_received;             /* of all arrived messages */
  uint64_t inlined, signalled;         /* of those posted */
  uint64_t receives;                   /* consumed */
  uint64_t rnr;                        /* messages that found no receive */
  uint64_t events;                     /* of completion channels */
  uint64_t registered;                 /* calls that registered */
  uint64_t registered_now;             /* regions */
  uint64_t registered_bytes;           /* of those */
} fake_verbs_counts;
__attribute__((visibility("default"))) void fake_verbs_count(
    fake_verbs_counts *counts);
/* The ports of all open devices of this process go down or up. */
__attribute__((visibility("default"))) void fake_verbs_port(int up);

#endif
