// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package codectest

import (
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"time"
)

// Random sets a value, and all fields and elements in it, to random values. A value that can be empty stays empty with
// a probability of one third.
func Random(v reflect.Value) {
	if rand.N(3) == 0 && v.Kind() != reflect.Struct {
		if v.Kind() == reflect.Slice && v.Type() != reflect.TypeFor[json.RawMessage]() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0)) // a nil slice would be written as null
		}
		return
	}
	if fillLeaf(v.Addr().Interface()) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		Random(v.Elem())
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				Random(field)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			v.Index(i).Set(nonZero(v.Type().Elem()))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range rand.N(4) {
			value := reflect.New(v.Type().Elem()).Elem()
			Random(value)
			v.SetMapIndex(nonZero(v.Type().Key()), value)
		}
	default:
		panic("no function makes a random " + v.Type().String())
	}
}

func nonZero(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	for v.IsZero() {
		Random(v)
	}
	return v
}

// fillLeaf sets *v to a random value, and returns true, if v points to a type without parts, such as a string or a
// time. For a type that Random fills part by part, fillLeaf returns false.
func fillLeaf(v any) bool {
	switch p := v.(type) {
	case *time.Time:
		if rand.N(3) > 0 {
			*p = time.Unix(rand.Int64N(1<<34), rand.Int64N(3)*500).UTC()
		}
	case *netip.Addr:
		*p = randomAddr()
	case *netip.Prefix:
		if rand.N(3) > 0 {
			*p = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rand.N(256))}), rand.N(33))
		}
	case *net.IP:
		*p = randomAddr().AsSlice()
	case *net.IPNet:
		a := randomAddr()
		*p = net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(rand.N(a.BitLen()+1), a.BitLen())}
	case *string:
		odd := []string{"eni-1", "", "a longer one, that is plain", `a quote " and a \`, "a control \x01",
			"<ü> & \u2028", "<->&", "\x7f a tail\n"}
		*p = odd[rand.N(len(odd))]
	case *json.RawMessage:
		*p = json.RawMessage(`{"x":[1,"}"]}`)
	case *int:
		*p = rand.N(1000) - 100
	case *uint32:
		*p = rand.Uint32()
	case *uint64:
		*p = rand.Uint64()
	case *bool:
		*p = true
	default:
		return false
	}
	return true
}

func randomAddr() netip.Addr {
	if rand.N(2) == 0 {
		return netip.AddrFrom16([16]byte{0x20, 1, 15: byte(rand.N(256)), 14: byte(rand.N(256)), 13: byte(rand.N(256))})
	}
	return netip.AddrFrom4([4]byte{10, byte(rand.N(256)), byte(rand.N(256)), byte(rand.N(256))})
}
