// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package trace says to which distributed trace the call of this process belongs. A runtime that traces its calls gives
// a plugin the variable TRACEPARENT (libcni 1.3.1). Its format is that of W3C Trace Context, level 1, section 3.2.
package trace

import (
	"os"
	"strings"
)

// ID is the trace of the call, as 32 hexadecimal digits. ID is empty if the caller does not trace the call, or if the
// variable has another format.
func ID() string { return id(os.Getenv("TRACEPARENT")) }

// id returns the trace in a text with the version, the trace, the caller's span and flags. In later versions, more
// fields may follow.
func id(parent string) string {
	fields := strings.Split(parent, "-")
	if len(fields) < 4 || len(fields) > 4 && fields[0] == "00" || fields[0] == "ff" {
		return ""
	}
	for i, digits := range []int{2, 32, 16, 2} {
		if len(fields[i]) != digits || strings.Trim(fields[i], "0123456789abcdef") != "" {
			return ""
		}
	}
	if strings.Trim(fields[1], "0") == "" { // the format forbids a trace of zeros
		return ""
	}
	return fields[1]
}
