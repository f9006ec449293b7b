// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// Metrics returns the numbers of each check's errors and warnings that are not fixed. It also returns zeros, because an
// alert ends only when its number is zero. A further metric is the time of the checks.
func (r Report) Metrics(now time.Time) []view.Metric {
	left := map[[2]string]int{}
	for _, f := range r.Findings {
		if f.Fixed == "" {
			left[[2]string{f.Check, f.Severity}]++
		}
	}
	findings := view.Metric{Name: "doctor_findings", Help: "Findings of the last run of cni-tool doctor."}
	for _, check := range r.Checked {
		for _, severity := range []string{severe, warning} {
			findings.Add(float64(left[[2]string{check, severity}]), "check", check, "severity", severity)
		}
	}
	made := view.Metric{Name: "doctor_timestamp_seconds", Help: "When cni-tool doctor last ran."}
	made.Add(float64(now.Unix()))
	return []view.Metric{findings, made}
}
