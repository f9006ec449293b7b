// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

func TestShortTracking(t *testing.T) {
	eni := func(id string, seconds int) aws.ENI {
		return aws.ENI{ID: id, Tracking: aws.Tracking{TCPEstablished: seconds}}
	}
	enis := []aws.ENI{eni("eni-2", 0), eni("eni-1", 0), eni("eni-3", 86400), eni("eni-4", 60), eni("eni-5", 3600)}
	for _, tt := range []struct {
		standard int
		want     []string
	}{
		{0, []string{"note eni-4 60"}}, // EC2 does not show the timeout
		{432000, []string{"note eni-4 60"}},
		{350, []string{"note eni-4 60", "warning eni-1, eni-2 350"}}, // Nitro v6
	} {
		var got []string
		for _, f := range trackingFindings(enis, "c8gn.large", tt.standard) {
			_, seconds, _ := strings.Cut(f.Means, "idle for ")
			seconds, _, _ = strings.Cut(seconds, " s")
			got = append(got, fmt.Sprint(f.Severity, " ", f.About, " ", seconds))
			if set := f.Severity == note; strings.Contains(f.Means, "the default of c8gn.large") == set {
				t.Errorf("%s: %s", f.Severity, f.Means)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("default %d: -want +got\n%s", tt.standard, diff)
		}
	}
}
