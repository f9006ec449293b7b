// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// A form has the parameters of a query. The name of a parameter is a path such as Filter.1.Value.2. A number in the
// path is the position of an element in a list (API: "Make requests to the Amazon EC2 API").
type form map[string]string

// decoder reads a form into the input structure of an action. A field's tag "ec2" is the name of its parameter,
// followed by ",required" if EC2 requires the parameter. A pointer stays nil if the parameter is missing.
type decoder struct {
	form form
	seen map[string]bool
}

// decode reads the form into the structure to which input points. It refuses missing, malformed and unknown parameters.
func (f form) decode(input any) error {
	d := decoder{form: f, seen: map[string]bool{}}
	if err := d.readStruct(reflect.ValueOf(input).Elem(), ""); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if !d.seen[name] && !isCommon(name) {
			return refuse("UnknownParameter", "The parameter %s is not recognized", name)
		}
	}
	return nil
}

// isCommon reports whether all actions have this parameter (API: "Common Query Parameters").
func isCommon(name string) bool {
	switch name {
	case "Action", "Version", "DryRun":
		return true
	}
	return strings.HasPrefix(name, "X-Amz-")
}

func (d *decoder) readStruct(v reflect.Value, path string) error {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			if err := d.readStruct(v.Field(i), path); err != nil {
				return err
			}
			continue
		}
		name, option, _ := strings.Cut(field.Tag.Get("ec2"), ",")
		if err := d.readValue(v.Field(i), path+name); err != nil {
			return err
		}
		if option == "required" && v.Field(i).IsZero() {
			return refuse("MissingParameter", "The request must contain the parameter %s", path+name)
		}
	}
	return nil
}

func (d *decoder) readValue(v reflect.Value, name string) error {
	switch {
	case v.Kind() == reflect.Slice:
		return d.readList(v, name)
	case v.Kind() == reflect.Struct && !isScalar(v):
		return d.readStruct(v, name+".")
	case v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.Struct:
		if !d.form.hasPrefix(name + ".") {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		return d.readStruct(v.Elem(), name+".")
	}
	text, ok := d.form[name]
	if !ok {
		return nil
	}
	d.seen[name] = true
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	// The name of each parameter for an IPv6 address or block contains "Ipv6".
	hasFamily := netip.Addr.Is4
	if strings.Contains(name, "Ipv6") {
		hasFamily = isIPv6
	}
	if want := parseScalar(v, text, hasFamily); want != "" {
		return invalidValue(text, name, "Expected "+want+".")
	}
	return nil
}

// readList reads the elements in the order of their numbers. The numbers may have gaps.
func (d *decoder) readList(v reflect.Value, name string) error {
	for _, n := range d.form.indexes(name + ".") {
		element := reflect.New(v.Type().Elem()).Elem()
		if err := d.readValue(element, name+"."+strconv.Itoa(n)); err != nil {
			return err
		}
		v.Set(reflect.Append(v, element))
	}
	return nil
}

func (f form) hasPrefix(prefix string) bool {
	for name := range f {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// indexes returns the numbers that follow the prefix in the names of parameters.
func (f form) indexes(prefix string) []int {
	found := map[int]bool{}
	for name := range f {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		digits, _, _ := strings.Cut(rest, ".")
		if n, err := strconv.Atoi(digits); err == nil && n > 0 && digits == strconv.Itoa(n) {
			found[n] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// isScalar reports whether v is an address or a prefix: v is then a structure, but one parameter sets all of v.
func isScalar(v reflect.Value) bool {
	switch v.Interface().(type) {
	case netip.Addr, netip.Prefix:
		return true
	}
	return false
}

// parseScalar parses the text into the value. If the text is invalid, parseScalar returns a description of valid texts.
// hasFamily reports whether an address has the family of the parameter.
func parseScalar(v reflect.Value, text string, hasFamily func(netip.Addr) bool) (want string) {
	ok := true
	switch p := v.Addr().Interface().(type) {
	case *string:
		*p = text
	case *bool:
		want, *p, ok = "true or false", text == "true", text == "true" || text == "false"
	case *int:
		n, err := strconv.ParseInt(text, 10, 32)
		want, *p, ok = "an integer", int(n), err == nil
	case *netip.Addr:
		a, err := netip.ParseAddr(text)
		want, *p, ok = "an address of the right family", a, err == nil && hasFamily(a)
	case *netip.Prefix:
		b, err := netip.ParsePrefix(text)
		want, *p, ok = "a CIDR block of the right family", b, err == nil && hasFamily(b.Addr()) && b == b.Masked()
	default:
		panic(fmt.Sprintf("ec2sim: no wire form for %s", v.Type()))
	}
	if ok {
		return ""
	}
	return want
}
