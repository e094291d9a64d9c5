/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ebb_swap

#if !defined(EBB_SWAP_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define EBB_SWAP_TRACE_H

#include <linux/tracepoint.h>

/* End of a read or write.  copies: its sources or targets, enum ebb_swap_copy. */
TRACE_EVENT(ebb_swap_io,
	TP_PROTO(u32 device, u32 slab, u64 page, u32 pages, u32 write, u32 copies, u64 latency,
		 int error),
	TP_ARGS(device, slab, page, pages, write, copies, latency, error),
	TP_STRUCT__entry(
		__field(u32, device)
		__field(u32, slab)
		__field(u64, page)
		__field(u32, pages)
		__field(u32, write)
		__field(u32, copies)
		__field(u64, latency)
		__field(int, error)
	),
	TP_fast_assign(
		__entry->device = device;
		__entry->slab = slab;
		__entry->page = page;
			   __entry->pages = pages;
		__entry->write = write;
		__entry->copies = copies;
			   __entry->latency = latency;
		__entry->error = error;
	),
	TP_printk("ebb%u slab %u page %llu+%u %s copies %u latency %llu ns error %d",
		  __entry->device, __entry->slab, __entry->page, __entry->pages,
		  __entry->write ? "write" : "read", __entry->copies, __entry->latency,
		  __entry->error)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
