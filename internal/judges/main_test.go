// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
)

// TestMerge reads the events of two judges, of which one has found a mistake. A VM died first, and the tests began
// again. The failure of the test in this VM must not count. The judges' rows are added to the table, or replace old
// rows.
func TestMerge(t *testing.T) {
	const events = `{"Action":"attr","Package":"p","Test":"TestDied","Key":"judge","Value":"d"}
{"Action":"fail","Package":"p","Test":"TestDied"}
{"Action":"output","Package":"p","Output":"exec: trying once more\n"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"attr","Package":"p","Test":"TestA/x","Key":"judge","Value":"tests of a"}
{"Action":"attr","Package":"p","Test":"TestA/x","Key":"version","Value":"v2"}
{"Action":"attr","Package":"p","Test":"TestA/x","Key":"judged","Value":"ADD"}
{"Action":"attr","Package":"p","Test":"TestA/x","Key":"left","Value":"3: no packets"}
{"Action":"attr","Package":"p","Test":"TestA/x","Key":"left","Value":"1: old"}
{"Action":"pass","Package":"p","Test":"TestA/x/one"}
{"Action":"output","Package":"p","Test":"TestA/x/two","Output":"what two says\n"}
{"Action":"fail","Package":"p","Test":"TestA/x/two"}
{"Action":"fail","Package":"p","Test":"TestA/x"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"attr","Package":"p","Test":"TestAX","Key":"judge","Value":"c"}
{"Action":"pass","Package":"p","Test":"TestAX"}
make: here
{"Action":"fail","Package":"p"}
`
	var out strings.Builder
	tests, err := readTests(strings.NewReader(events), &out)
	const failed = "p TestA failed\np TestA/x failed\np TestA/x/two failed\np failed"
	if err == nil || err.Error() != failed {
		t.Errorf("error %v, want %s", err, failed)
	}
	if want := "exec: trying once more\nwhat two says\nmake: here\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	rows := mergeRows(table.Table{{"judge", "version", "judged", "cases", "passed", "left"},
		{"b", "v1", "DEL", "1", "1", "–"}, {"tests of a", "v1", "ADD", "9", "9", "–"}}, rowsOf(tests))
	if diff := cmp.Diff(table.Table{{"judge", "version", "judged", "cases", "passed", "left"},
		{"b", "v1", "DEL", "1", "1", "–"}, {"c", "", "", "1", "1", "–"},
		{"tests of a", "v2", "ADD", "2", "**1**", "3: no packets; 1: old"}}, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}
