// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package trace finds the distributed trace to which the CNI call of this process belongs. A runtime that traces its
// CNI calls sets the environment variable TRACEPARENT for the plugin (libcni 1.3.1). The variable has the format of the
// HTTP header traceparent (W3C Trace Context, level 1, section 3.2).
package trace

import (
	"os"
	"strings"
)

// ID returns the trace ID of the CNI call: 32 hexadecimal digits. If the runtime does not trace the call, or if the
// variable has another format, ID returns "".
func ID() string { return traceID(os.Getenv("TRACEPARENT")) }

// traceID returns the trace ID in the value of TRACEPARENT, which has four fields: version, trace ID, parent ID and
// flags. In later versions of the format, more fields may follow.
func traceID(parent string) string {
	fields := strings.Split(parent, "-")
	if len(fields) < 4 || len(fields) > 4 && fields[0] == "00" || fields[0] == "ff" {
		return ""
	}
	for i, digits := range []int{2, 32, 16, 2} {
		if len(fields[i]) != digits || strings.Trim(fields[i], "0123456789abcdef") != "" {
			return ""
		}
	}
	if strings.Trim(fields[1], "0") == "" { // the format does not allow a trace ID of zeros
		return ""
	}
	return fields[1]
}
