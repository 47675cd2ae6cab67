/* device: one GPU's memory, streams, events and flags, behind one table.
 *
 * May call base and os. Must not know collectives. `cuda` (the driver API) and
 * `hip` (the runtime that torch or RCCL already loaded) are twins of this
 * contract; both are opened at run time, nothing of a vendor is needed to
 * build. `host` beside them is element-wise work on host memory.
 *
 * A missing library, symbol or device is GB_ERR_UNSUPPORTED with a text that
 * says which, where it was looked for, and the way out; never a crash.
 *
 * Threads: any, several at once, unless a function says otherwise. No function
 * assumes a current device or leaves another one current than it found (the
 * device's primary context is pushed and popped; hipSetDevice and back).
 * Nothing here blocks on GPU work unless it says so. Streams and events are the
 * vendor's own handles (CUstream, hipStream_t ...): a caller's stream comes in
 * as it is; NULL is the legacy default stream.
 *
 * Flags are 64-bit words on cache lines of their own in pinned memory, that
 * only grow. A GPU raises one (set_flag) for the host to read with an acquire
 * load; the host raises another with a release store for a GPU to wait for
 * (wait_flag). The host side of both never calls the vendor's runtime:
 * research/gpu-runtime-and-nccl.md D.2, invariant G. */
#ifndef GBI_DEVICE_DEVICE_H
#define GBI_DEVICE_DEVICE_H

#include "base/base.h"

typedef enum gbi_vendor { GBI_NVIDIA, GBI_AMD, GBI_VENDORS } gbi_vendor;
const char *gbi_vendor_name(gbi_vendor vendor); /* "nvidia", "amd"; static */

typedef void *gbi_stream;
typedef void *gbi_event;
typedef void *gbi_module;   /* code that is loaded */
typedef void *gbi_function; /* a kernel of it */
typedef struct gbi_device gbi_device;

/* What is true of a GPU as long as it is there. Strings are "" when the driver
 * does not tell. */
typedef struct gbi_device_facts {
  char name[96];
  char uuid[48];  /* "GPU-xxxxxxxx-xxxx-...", or the MIG slice's */
  char pci[32];   /* "0000:65:00.0", lower case */
  char arch[64];  /* "sm_90", or gcnArchName with its suffixes */
  uint64_t memory_bytes;
  int driver;     /* 12040: CUDA 12.4; HIP: hipDriverGetVersion */
  bool flags;     /* waits and writes on a stream work, 64 bits wide */
  bool captures_flags; /* and go into a graph when the stream captures */
} gbi_device_facts;

typedef enum gbi_memory_kind {
  GBI_MEMORY_PAGEABLE, /* the runtime knows nothing of it */
  GBI_MEMORY_PINNED,
  GBI_MEMORY_DEVICE,
  GBI_MEMORY_MANAGED
} gbi_memory_kind;

typedef struct gbi_memory_facts {
  gbi_memory_kind kind;
  int device; /* index; -1 for pageable and pinned */
} gbi_memory_facts;

#define GBI_CAPTURE_RELAXED 2u /* both vendors' */

typedef struct gbi_device_ops {
  gbi_vendor vendor;
  /* Operations that a stream takes without making the submitter wait: 0, no
   * bound; 64 on ROCm (D.5 there). */
  int outstanding_most;

  void (*close)(gbi_device *device);

  /* Streams of our own never wait for the legacy default stream. */
  gb_status (*stream_new)(gbi_device *device, gbi_stream *stream_p,
                          gb_error *error);
  void (*stream_free)(gbi_device *device, gbi_stream stream);
  /* GB_OK: all done; GB_ERR_BUSY; else what the device failed with. */
  gb_status (*stream_query)(gbi_device *device, gbi_stream stream,
                            gb_error *error);
  /* Blocks the host. Never in a collective. */
  gb_status (*stream_sync)(gbi_device *device, gbi_stream stream,
                           gb_error *error);
  /* Whether what is enqueued now goes into a graph. */
  gb_status (*stream_captures)(gbi_device *device, gbi_stream stream,
                               bool *captures_p, gb_error *error);

  gb_status (*event_new)(gbi_device *device, gbi_event *event_p,
                         gb_error *error);
  void (*event_free)(gbi_device *device, gbi_event event);
  gb_status (*event_record)(gbi_device *device, gbi_event event,
                            gbi_stream stream, gb_error *error);
  gb_status (*event_query)(gbi_device *device, gbi_event event,
                           gb_error *error);
  gb_status (*stream_wait)(gbi_device *device, gbi_stream stream,
                           gbi_event event, gb_error *error);

  /* Device memory, freed by free_memory; may synchronise the device. */
  gb_status (*memory)(gbi_device *device, size_t bytes, void **memory_p,
                      gb_error *error);
  void (*free_memory)(gbi_device *device, void *memory);
  /* Pinned, coherent, mapped: zeroed and page-aligned (one page more is taken
   * for that). MEMORY when there is not that much. *device_p: the GPU's address
   * of it. */
  gb_status (*pinned)(gbi_device *device, size_t bytes, void **host_p,
                      void **device_p, gb_error *error);
  void (*free_pinned)(gbi_device *device, void *host);
  /* Pins memory that is there already (page-aligned, a multiple of a page),
   * for two runtimes at once if need be; undone by unadopt. */
  gb_status (*adopt)(gbi_device *device, void *host, size_t bytes,
                     void **device_p, gb_error *error);
  void (*unadopt)(gbi_device *device, void *host);

  /* `host` is pinned or adopted memory, anything else is a bug of ours: a
   * runtime would wait for the stream on the calling thread. 0 bytes: nothing
   * is enqueued. */
  gb_status (*copy_out)(gbi_device *device, void *host, const void *memory,
                        size_t bytes, gbi_stream stream, gb_error *error);
  gb_status (*copy_in)(gbi_device *device, void *memory, const void *host,
                       size_t bytes, gbi_stream stream, gb_error *error);
  gb_status (*copy)(gbi_device *device, void *to, const void *from,
                    size_t bytes, gbi_stream stream, gb_error *error);

  /* `flag_device`: the GPU's address of a flag. wait_flag holds the stream
   * until the flag is `value` or more; values stay below 2^62. set_flag: once
   * everything before it on the stream is done and visible to the host. */
  gb_status (*wait_flag)(gbi_device *device, void *flag_device, uint64_t value,
                         gbi_stream stream, gb_error *error);
  gb_status (*set_flag)(gbi_device *device, void *flag_device, uint64_t value,
                        gbi_stream stream, gb_error *error);

  gb_status (*memory_facts)(gbi_device *device, const void *memory,
                            gbi_memory_facts *facts, gb_error *error);

  /* Code of device/compiler.h. Loading may wait for the whole device, and so
   * may the first launch of a function: never in a collective. UNSUPPORTED for
   * code that is not this GPU's. */
  gb_status (*module_load)(gbi_device *device, const void *code,
                           gbi_module *module_p, gb_error *error);
  void (*module_free)(gbi_device *device, gbi_module module);
  gb_status (*module_function)(gbi_device *device, gbi_module module,
                               const char *name, gbi_function *function_p,
                               gb_error *error);
  /* `arguments`: the address of each. */
  gb_status (*launch)(gbi_device *device, gbi_function function,
                      unsigned blocks, unsigned threads, void **arguments,
                      gbi_stream stream, gb_error *error);

  /* The calling thread is one of ours: what it does on devices does not break
   * a graph capture that the application has under way. Once per thread. */
  void (*own_thread)(gbi_device *device);

  /* Exchanges what the calling thread may do while somebody captures:
   * GBI_CAPTURE_RELAXED lets it get memory, which breaks a capture elsewise.
   * Twice, with the same variable, leaves things as they were. */
  void (*swap_capture_mode)(gbi_device *device, unsigned int *mode);
  /* Calls gone(arg) once the graph that `stream` captures into is no more, nor
   * any that was made from it: on a thread of the runtime's, where nothing of
   * the runtime may be called. UNSUPPORTED: never. */
  gb_status (*at_end_of_graph)(gbi_device *device, gbi_stream stream,
                               void (*gone)(void *arg), void *arg,
                               gb_error *error);

  /* Between the two the calling thread's current device is this one, and other
   * calls do not look at it each for itself. Not nested, not left open; what
   * was current before is so again afterwards. */
  gb_status (*enter)(gbi_device *device, gb_error *error);
  void (*leave)(gbi_device *device);
} gbi_device_ops;

struct gbi_device {
  const gbi_device_ops *ops;
  int index; /* among the visible ones */
  gbi_device_facts facts;
};

/* Loads the vendor's runtime if it is not loaded (once a process) and counts
 * the devices that this process sees. `way_p`, if not NULL, gets which file was
 * loaded, static. UNSUPPORTED: no library, no driver, too old a driver. No
 * devices is OK and 0. */
gb_status gbi_device_count(gbi_vendor vendor, int *count_p, const char **way_p,
                           gb_error *error);
/* Facts of one device without opening it (no context is made on it). */
gb_status gbi_device_look(gbi_vendor vendor, int index,
                          gbi_device_facts *facts, gb_error *error);
/* ARGUMENT with the number of visible devices and the visible-device variables
 * for an index that is not there. Closed by ops->close. */
gb_status gbi_device_open(gbi_vendor vendor, int index, gbi_device **device_p,
                          gb_error *error);

#endif
