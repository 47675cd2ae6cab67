# cmake -DIN=file -DOUT=file.c -DNAME=name -P GbEmbed.cmake: the text of IN as a
# C array that ends with a 0.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${OUT} "extern const char ${NAME}[];\nconst char ${NAME}[] = {\n"
     "${hex}\n0};\n")
